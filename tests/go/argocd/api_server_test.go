package host

import (
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// apiServer is a fake API server with one RouteTable in the namespace shop, which never changes.
type apiServer struct {
	up    atomic.Bool
	asked atomic.Int64
	table []byte
	// The generator's flag for it.
	kubeconfig string
}

// newAPIServer starts an API server that answers 503 until it is up.
func newAPIServer(t testing.TB, table string) *apiServer {
	t.Helper()
	json, err := yaml.YAMLToJSON([]byte(table))
	if err != nil {
		t.Fatal(err)
	}
	s := &apiServer{table: json}
	s.kubeconfig = "--kubeconfig=" + kubeconfigOf(t, serve(t, s.ServeHTTP))
	return s
}

func (s *apiServer) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	s.asked.Add(1)
	query := request.URL.Query()
	switch {
	case !s.up.Load() || request.URL.Path != "/apis/networking.gloo.solo.io/v2/namespaces/shop/routetables":
		http.Error(writer, "starting", http.StatusServiceUnavailable)
	case query.Get("watch") == "true":
		_ = http.NewResponseController(writer).Flush()
		seconds, _ := strconv.Atoi(query.Get("timeoutSeconds"))
		select {
		case <-time.After(time.Duration(seconds) * time.Second):
		case <-request.Context().Done():
		}
	default:
		fmt.Fprintf(writer, `{"apiVersion": "networking.gloo.solo.io/v2", "kind": "RouteTableList",
			"metadata": {"resourceVersion": "1"}, "items": [%s]}`, s.table)
	}
}
