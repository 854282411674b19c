package host

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// freeAddress returns an address on which nothing listens.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

// The metrics of a canary, checked by promlint, which `promtool check metrics` uses.
func TestMetrics(t *testing.T) {
	t.Parallel()
	handle := router(t, metered)
	rollout := realisticRollout(t)
	for _, weight := range []int32{0, 25, 25} {
		succeeds(t, "RemoveManagedRoutes", handle.RemoveManagedRoutes(rollout))
		succeeds(t, "UpdateHash", handle.UpdateHash(rollout, "a", "b", nil))
		succeeds(t, "SetWeight", handle.SetWeight(rollout, weight, nil))
		if _, err := handle.VerifyWeight(rollout, weight, nil); err.HasError() {
			t.Error(err)
		}
	}
	configure(rollout, `{"routeTableSelector": {"name": "absent"}}`)
	refuses(t, "SetWeight", handle.SetWeight(rollout, 25, nil), "absent")

	// Another process with the same address logs a warning and works otherwise.
	second := router(t, samePort)
	succeeds(t, "SetWeight", second.SetWeight(realisticRollout(t), 25, nil))

	response, err := http.Get("http://" + environment.metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	for _, line := range []string{
		`gloo_router_calls_total{method="SetWeight",code="ok"} 3`,
		`gloo_router_calls_total{method="SetWeight",code="error"} 1`,
		`gloo_router_calls_total{method="VerifyWeight",code="ok"} 3`,
		`gloo_router_passes_total{result="failed"} 1`,
	} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
}
