//go:build !before_1_8

package host

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	log "github.com/sirupsen/logrus"
	"sigs.k8s.io/yaml"

	"github.com/argoproj/argo-rollouts/metricproviders/prometheus"
	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	analysisutil "github.com/argoproj/argo-rollouts/utils/analysis"
)

// The AnalysisTemplates of deploy/observability, measured by the controller's own provider with possible answers of Prometheus.
func TestAnalysisTemplates(t *testing.T) {
	t.Parallel()
	const empty = `[]`
	vector := func(value string) string {
		return fmt.Sprintf(`[{"metric": {}, "value": [1, %q]}]`, value)
	}
	for _, test := range []struct {
		template, result string
		want             v1alpha1.AnalysisPhase
	}{
		{"success-rate", vector("1"), v1alpha1.AnalysisPhaseSuccessful},
		{"success-rate", vector("0.99"), v1alpha1.AnalysisPhaseSuccessful},
		{"success-rate", vector("0.98"), v1alpha1.AnalysisPhaseFailed},
		{"success-rate", vector("0"), v1alpha1.AnalysisPhaseFailed},
		{"success-rate", vector("NaN"), v1alpha1.AnalysisPhaseInconclusive},
		{"success-rate", empty, v1alpha1.AnalysisPhaseInconclusive},
		{"latency", vector("120.5"), v1alpha1.AnalysisPhaseSuccessful},
		{"latency", vector("500"), v1alpha1.AnalysisPhaseSuccessful},
		{"latency", vector("501"), v1alpha1.AnalysisPhaseFailed},
		{"latency", vector("+Inf"), v1alpha1.AnalysisPhaseFailed},
		{"latency", vector("NaN"), v1alpha1.AnalysisPhaseInconclusive},
		{"latency", empty, v1alpha1.AnalysisPhaseInconclusive},
	} {
		t.Run(test.template+" "+test.result, func(t *testing.T) {
			var asked string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = r.FormValue("query")
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"status": "success", "data": {"resultType": "vector", "result": %s}}`, test.result)
			}))
			defer server.Close()
			measurement := measureTemplate(t, test.template, server.URL)
			if measurement.Phase != test.want {
				t.Errorf("%s, want %s: %s", measurement.Phase, test.want, measurement.Message)
			}
			for _, label := range []string{
				`destination_service_name="reviews-canary"`,
				`destination_service_namespace="shop"`,
				`source_workload=~"istio-ingressgateway.*"`,
			} {
				if !strings.Contains(asked, label) {
					t.Errorf("the query has no %s: %s", label, asked)
				}
			}
			if strings.Contains(asked, "{{") {
				t.Errorf("an argument is not filled in: %s", asked)
			}
		})
	}
}

// measureTemplate takes the only measurement of a template, with its required arguments and a fake Prometheus.
func measureTemplate(t *testing.T, template, address string) v1alpha1.Measurement {
	t.Helper()
	path := filepath.Join(environment.testdata, "../../../../deploy/observability/analysis", template+".yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var object v1alpha1.AnalysisTemplate
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		t.Fatal(err)
	}
	given := func(name, value string) v1alpha1.Argument { return v1alpha1.Argument{Name: name, Value: &value} }
	args, err := analysisutil.MergeArgs([]v1alpha1.Argument{
		given("service", "reviews-canary"), given("namespace", "shop"), given("prometheus", address),
	}, object.Spec.Args)
	if err != nil {
		t.Fatal(err)
	}
	metric, err := analysisutil.ResolveMetricArgs(object.Spec.Metrics[0], args)
	if err != nil {
		t.Fatal(err)
	}
	api, err := prometheus.NewPrometheusAPI(*metric)
	if err != nil {
		t.Fatal(err)
	}
	provider, err := prometheus.NewPrometheusProvider(api, *log.NewEntry(log.StandardLogger()), *metric)
	if err != nil {
		t.Fatal(err)
	}
	return provider.Run(&v1alpha1.AnalysisRun{}, *metric)
}
