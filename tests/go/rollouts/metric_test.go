package host

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	metricclient "github.com/argoproj/argo-rollouts/metricproviders/plugin/client"
	metricrpc "github.com/argoproj/argo-rollouts/metricproviders/plugin/rpc"
	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
)

// metricOf returns a metric for the example provider with this configuration.
func metricOf(block string) v1alpha1.Metric {
	return v1alpha1.Metric{
		Name:             "constant",
		SuccessCondition: "result > 0",
		Provider: v1alpha1.MetricProvider{
			// The types of other providers are part of every call, even if they are not set.
			Job:    &v1alpha1.JobMetric{},
			Plugin: map[string]json.RawMessage{metricProvider: []byte(block)},
		},
	}
}

func analysisRun() *v1alpha1.AnalysisRun {
	value, now := "canary", metav1.Now()
	return &v1alpha1.AnalysisRun{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-1", Namespace: "shop", UID: "u-1"},
		Spec: v1alpha1.AnalysisRunSpec{
			Metrics: []v1alpha1.Metric{metricOf(`{}`)},
			Args:    []v1alpha1.Argument{{Name: "service", Value: &value}, {Name: "unset"}},
		},
		Status: v1alpha1.AnalysisRunStatus{
			Phase:     v1alpha1.AnalysisPhaseRunning,
			StartedAt: &now,
			MetricResults: []v1alpha1.MetricResult{{
				Name:         "constant",
				Measurements: []v1alpha1.Measurement{{Phase: v1alpha1.AnalysisPhaseError, StartedAt: &now}},
			}},
		},
	}
}

func provider(t *testing.T, metric v1alpha1.Metric) metricrpc.MetricProviderPlugin {
	t.Helper()
	handle, err := metricclient.GetMetricPlugin(metric)
	if err != nil {
		t.Fatal(err)
	}
	return handle
}

func TestAMetricProviderMeasures(t *testing.T) {
	t.Parallel()
	run := analysisRun()
	for _, test := range []struct {
		block string
		phase v1alpha1.AnalysisPhase
		value string
	}{
		{`{"value": 0.97, "atLeast": 0.9}`, v1alpha1.AnalysisPhaseSuccessful, "0.97"},
		{`{"value": 0.5, "atLeast": 0.9}`, v1alpha1.AnalysisPhaseFailed, "0.5"},
		{`{"value": "high"}`, v1alpha1.AnalysisPhaseError, ""},
	} {
		metric := metricOf(test.block)
		got := provider(t, metric).Run(run, metric)
		if got.Phase != test.phase || got.Value != test.value || got.StartedAt == nil || got.FinishedAt == nil {
			t.Errorf("Run with %s: %+v", test.block, got)
		}
		if test.phase == v1alpha1.AnalysisPhaseError && !strings.HasPrefix(got.Message, "failed to run via plugin: ") {
			t.Errorf("Run with %s: %q", test.block, got.Message)
		}
	}
}

func TestAMeasurementIsResumedAndTerminated(t *testing.T) {
	t.Parallel()
	run, metric := analysisRun(), metricOf(`{"value": 1, "atLeast": 0, "slow": true}`)
	plugin := provider(t, metric)
	begun := plugin.Run(run, metric)
	if begun.Phase != v1alpha1.AnalysisPhaseRunning || begun.ResumeAt == nil || begun.FinishedAt != nil {
		t.Fatalf("Run: %+v", begun)
	}
	if wait := time.Until(begun.ResumeAt.Time); wait < 0 || wait > 10*time.Second {
		t.Errorf("Run: resumes in %s", wait)
	}
	for call, ended := range map[string]v1alpha1.Measurement{
		"Resume":    plugin.Resume(run, metric, begun),
		"Terminate": plugin.Terminate(run, metric, begun),
	} {
		if ended.Phase != v1alpha1.AnalysisPhaseSuccessful || ended.FinishedAt == nil {
			t.Errorf("%s: %+v", call, ended)
		}
		if !ended.StartedAt.Equal(begun.StartedAt) || !maps.Equal(ended.Metadata, map[string]string{"run": "u-1"}) {
			t.Errorf("%s lost the metadata of Run: %+v", call, ended)
		}
	}
}

func TestAMetricProvidersOtherMethodsAnswer(t *testing.T) {
	t.Parallel()
	run, metric := analysisRun(), metricOf(`{"value": 1, "atLeast": 0.25}`)
	plugin := provider(t, metric)
	if got := plugin.Type(); got != "Constant" {
		t.Errorf("Type: %q", got)
	}
	succeeds(t, "GarbageCollect", plugin.GarbageCollect(run, metric, 3))
	refuses(t, "GarbageCollect", plugin.GarbageCollect(run, metric, -1), "the limit is -1")
	if got := plugin.GetMetadata(metric); !maps.Equal(got, map[string]string{"atLeast": "0.25"}) {
		t.Errorf("GetMetadata: %v", got)
	}
	if got := plugin.GetMetadata(metricOf(`{}`)); !strings.HasPrefix(got["error"], "failed to get metadata via plugin: ") {
		t.Errorf("GetMetadata of a bad configuration: %v", got)
	}
}
