//go:build !before_1_8

package host

import (
	"encoding/json"
	"testing"
	"time"

	stepclient "github.com/argoproj/argo-rollouts/rollout/steps/plugin/client"
	steprpc "github.com/argoproj/argo-rollouts/rollout/steps/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
)

func step(t *testing.T) steprpc.StepPlugin {
	t.Helper()
	handle, err := stepclient.GetPlugin(stepPlugin)
	if err != nil {
		t.Fatal(err)
	}
	return handle
}

func contextOf(config string, status json.RawMessage) *types.RpcStepContext {
	return &types.RpcStepContext{PluginName: stepPlugin, Config: []byte(config), Status: status}
}

func TestAStepRunsUntilItIsDone(t *testing.T) {
	t.Parallel()
	rollout, plugin := realisticRollout(t), step(t)
	if got := plugin.Type(); got != "Patience" {
		t.Errorf("Type: %q", got)
	}
	var status json.RawMessage
	for _, want := range []types.RpcStepResult{
		{Phase: types.PhaseRunning, Message: "checked 1 of 2 times", Status: []byte(`{"checks":1}`)},
		{Phase: types.PhaseSuccessful, Message: "checked 2 of 2 times", Status: []byte(`{"checks":2}`)},
	} {
		got, err := plugin.Run(rollout, contextOf(`{"times": 2}`, status))
		succeeds(t, "Run", err)
		if got.Phase != want.Phase || got.Message != want.Message || string(got.Status) != string(want.Status) || got.RequeueAfter != 15*time.Second {
			t.Errorf("Run: %+v, want %+v", got, want)
		}
		status = got.Status
	}
	got, err := plugin.Abort(rollout, contextOf(`{"times": 2}`, status))
	succeeds(t, "Abort", err)
	if got.Phase != types.PhaseSuccessful || got.Message != "discarded 2 checks" || got.Status != nil {
		t.Errorf("Abort: %+v", got)
	}
	got, err = plugin.Terminate(rollout, contextOf(`{"times": 2}`, status))
	succeeds(t, "Terminate", err)
	if got.Phase != types.PhaseSuccessful {
		t.Errorf("Terminate: %+v", got)
	}
}

func TestAStepsErrorIsOneLine(t *testing.T) {
	t.Parallel()
	rollout, plugin := realisticRollout(t), step(t)
	_, err := plugin.Run(rollout, contextOf("{\n\"50%\": 2}", nil))
	refuses(t, "Run", err, "unknown field")
	_, err = plugin.Abort(rollout, contextOf(`{}`, json.RawMessage(`7`)))
	refuses(t, "Abort", err, "expected")
}
