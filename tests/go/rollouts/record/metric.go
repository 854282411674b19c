package main

import (
	"github.com/argoproj/argo-rollouts/metricproviders/plugin/rpc"
	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"

	"e2e.test/rollouts/fixture"
)

// recordMetricProvider makes every call twice, the second time with an empty run and an empty metric.
func recordMetricProvider() recording {
	plugin, recorded := record(&rpc.RpcMetricProviderPlugin{Impl: silentMetricProvider{}})
	provider := plugin.(rpc.MetricProviderPlugin)

	run, err := fixture.AnalysisRun()
	check(err)
	for _, round := range []struct {
		run         *v1alpha1.AnalysisRun
		metric      v1alpha1.Metric
		measurement v1alpha1.Measurement
	}{
		{run, run.Spec.Metrics[0], run.Status.MetricResults[0].Measurements[0]},
		{&v1alpha1.AnalysisRun{}, v1alpha1.Metric{}, v1alpha1.Measurement{}},
	} {
		recorded.called("InitPlugin", provider.InitPlugin())
		provider.Type()
		recorded.called("Type", succeeded)
		provider.Run(round.run, round.metric)
		recorded.called("Run", succeeded)
		provider.Resume(round.run, round.metric, round.measurement)
		recorded.called("Resume", succeeded)
		provider.Terminate(round.run, round.metric, round.measurement)
		recorded.called("Terminate", succeeded)
		recorded.called("GarbageCollect", provider.GarbageCollect(round.run, round.metric, 10))
		provider.GetMetadata(round.metric)
		recorded.called("GetMetadata", succeeded)
	}
	return recorded
}

type silentMetricProvider struct{ silent }

func (silentMetricProvider) Run(*v1alpha1.AnalysisRun, v1alpha1.Metric) (none v1alpha1.Measurement) {
	return
}

func (silentMetricProvider) Resume(*v1alpha1.AnalysisRun, v1alpha1.Metric, v1alpha1.Measurement) (none v1alpha1.Measurement) {
	return
}

func (silentMetricProvider) Terminate(*v1alpha1.AnalysisRun, v1alpha1.Metric, v1alpha1.Measurement) (none v1alpha1.Measurement) {
	return
}

func (silentMetricProvider) GarbageCollect(*v1alpha1.AnalysisRun, v1alpha1.Metric, int) types.RpcError {
	return succeeded
}

func (silentMetricProvider) GetMetadata(v1alpha1.Metric) map[string]string { return nil }
