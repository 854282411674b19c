package grpc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"

	"e2e.test/rollouts/fixture"
)

func plain(*goplugin.ClientConfig) {}

// answer is the result of one call, and the tables after it.
type answer struct {
	call     string
	text     string
	verified types.RpcVerified
	tables   map[string]string
}

// answers makes the calls of a whole canary, and some that return errors.
func answers(t *testing.T, h *host) []answer {
	t.Helper()
	var all []answer
	plugin := h.router(t)
	record := func(call, text string, verified types.RpcVerified) {
		text = strings.ReplaceAll(text, h.tables, "TABLES")
		all = append(all, answer{call, text, verified, contents(t, h.tables)})
	}
	errored := func(call string, result types.RpcError) { record(call, result.ErrorString, 0) }
	verifying := func(call string, verified types.RpcVerified, result types.RpcError) {
		record(call, result.ErrorString, verified)
	}
	calls(t, plugin, errored, verifying)
	record("Type", plugin.Type(), 0)
	return all
}

func calls(t *testing.T, plugin rpc.TrafficRouterPlugin, errored func(string, types.RpcError), verifying func(string, types.RpcVerified, types.RpcError)) {
	rollout, err := fixture.Rollout()
	if err != nil {
		t.Fatal(err)
	}
	at := func(step int32) *v1alpha1.Rollout {
		moved := rollout.DeepCopy()
		moved.Status.CurrentStepIndex = &step
		return moved
	}
	verify := func(call string, rollout *v1alpha1.Rollout, desired int32, additional []v1alpha1.WeightDestination) {
		verified, result := plugin.VerifyWeight(rollout, desired, additional)
		verifying(call, verified, result)
	}
	steps := rollout.Spec.Strategy.Canary.Steps
	errored("InitPlugin", plugin.InitPlugin())
	errored("UpdateHash", plugin.UpdateHash(rollout, "6d4f8b7c5", "7c9d6b5f4", nil))
	errored("SetWeight 25", plugin.SetWeight(rollout, 25, nil))
	verify("VerifyWeight 25", rollout, 25, nil)
	verify("VerifyWeight 30", rollout, 30, nil)
	errored("SetHeaderRoute", plugin.SetHeaderRoute(at(3), steps[3].SetHeaderRoute))
	errored("SetMirrorRoute", plugin.SetMirrorRoute(at(4), steps[4].SetMirrorRoute))
	errored("SetWeight 50 with the routes", plugin.SetWeight(at(9), 50, nil))
	additional := []v1alpha1.WeightDestination{{Weight: 10, ServiceName: "demo-experiment", PodTemplateHash: "5f6c7d8"}}
	errored("SetWeight 20 with an experiment", plugin.SetWeight(rollout, 20, additional))
	verify("VerifyWeight 20 with an experiment", rollout, 20, additional)
	errored("RemoveManagedRoutes", plugin.RemoveManagedRoutes(rollout))
	errored("SetWeight 0", plugin.SetWeight(rollout, 0, nil))
	verify("VerifyWeight 0", rollout, 0, nil)

	for what, block := range map[string]string{
		"no such table": `{"routeTableSelector": {"name": "nowhere"}}`,
		"no such field": `{"routeTable": "50%\n"}`,
		"no share":      `{"routeTableSelector": {"name": "no-share"}}`,
	} {
		refused := rollout.DeepCopy()
		refused.Spec.Strategy.Canary.TrafficRouting.Plugins["solo-io/glooplatform"] = json.RawMessage(block)
		errored("SetWeight: "+what, plugin.SetWeight(refused, 25, nil))
		verify("VerifyWeight: "+what, refused, 25, nil)
	}
	noCanary := rollout.DeepCopy()
	noCanary.Spec.Strategy.Canary = nil
	errored("SetWeight: no canary", plugin.SetWeight(noCanary, 25, nil))
}

func TestBothProtocolsGiveTheSameAnswers(t *testing.T) {
	byCall := func(left, right answer) int { return strings.Compare(left.call, right.call) }
	expected := answers(t, newHost(t, goplugin.ProtocolNetRPC, plain))
	slices.SortFunc(expected, byCall)
	refused, edited := 0, map[string]bool{}
	for _, answer := range expected {
		if answer.text != "" && answer.call != "Type" {
			refused++
		}
		edited[answer.tables["shop.yaml"]] = true
	}
	if refused < 4 || len(edited) < 6 {
		t.Errorf("the calls cover too little: %d errors, %d states of the table", refused, len(edited))
	}
	found := answers(t, newHost(t, goplugin.ProtocolGRPC, plain))
	slices.SortFunc(found, byCall)
	for i, want := range expected {
		got := found[i]
		if got.call != want.call || got.text != want.text || got.verified != want.verified {
			t.Errorf("%s: %q, %d; over net/rpc %s: %q, %d", got.call, got.text, got.verified, want.call, want.text, want.verified)
		}
		if !maps.Equal(got.tables, want.tables) {
			t.Errorf("%s: %v; over net/rpc %v", got.call, got.tables, want.tables)
		}
	}
}

func TestThePluginIsPingedAndEndsCleanly(t *testing.T) {
	for _, protocol := range []goplugin.Protocol{goplugin.ProtocolGRPC, goplugin.ProtocolNetRPC} {
		t.Run(string(protocol), func(t *testing.T) {
			h := newHost(t, protocol, plain)
			session, err := h.Client.Client()
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := session.Ping(); err != nil {
					t.Errorf("Ping: %v", err)
				}
			}
			if sockets := contents(t, h.sockets); len(sockets) != 1 {
				t.Errorf("want one socket, found %v", sockets)
			}

			h.Kill()

			if h.process.ProcessState == nil || h.process.ProcessState.ExitCode() != 0 {
				t.Errorf("ended with %v, want exit status 0", h.process.ProcessState)
			}
			if left := contents(t, h.sockets); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
			// The client logs warnings for missing services, failed streams and a plugin that must be killed.
			for _, level := range []string{"[WARN]", "[ERROR]"} {
				if log := h.log.String(); strings.Contains(log, level) {
					t.Errorf("the host logged a %s", level)
				}
			}
		})
	}
}

func TestEveryServiceIsListed(t *testing.T) {
	want := []string{
		"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
		"plugin.GRPCBroker", "plugin.GRPCController", "plugin.GRPCStdio", service,
	}
	conn := newHost(t, goplugin.ProtocolGRPC, plain).router(t).(*router).conn
	list, err := reflection.NewServerReflectionClient(conn).ServerReflectionInfo(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	_ = list.Send(&reflection.ServerReflectionRequest{MessageRequest: &reflection.ServerReflectionRequest_ListServices{}})
	response, err := list.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, service := range response.GetListServicesResponse().GetService() {
		found = append(found, service.Name)
	}
	slices.Sort(found)
	if !slices.Equal(found, want) {
		t.Errorf("it lists %v, want %v", found, want)
	}
}

// The stream of the plugin's output stays open until the plugin ends.
func TestTheStdioStreamIsSilentUntilTheEnd(t *testing.T) {
	h := newHost(t, goplugin.ProtocolGRPC, plain)
	conn := h.router(t).(*router).conn
	stream, err := conn.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true}, "/plugin.GRPCStdio/StreamStdio")
	if err != nil {
		t.Fatal(err)
	}
	empty := &emptypb.Empty{}
	if err := errors.Join(stream.SendMsg(empty), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Errorf("the stream was not accepted: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stream.RecvMsg(&emptypb.Empty{}) }()
	// On the same connection, an end of the stream would arrive before these answers.
	for range 20 {
		if err := conn.Invoke(context.Background(), "/"+service+"/Type", empty, &emptypb.Empty{}); err != nil {
			t.Errorf("Type: %v", err)
		}
	}
	if len(ended) != 0 {
		t.Error("the stream ended before the plugin")
	}
	if err := conn.Invoke(context.Background(), "/plugin.GRPCController/Shutdown", empty, empty); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-ended; err != io.EOF {
		t.Errorf("the stream ended with %v, want its end in order", err)
	}
}

func TestAFailedCallHasAGRPCStatus(t *testing.T) {
	plugin := newHost(t, goplugin.ProtocolGRPC, plain).router(t).(*router)
	demo, err := fixture.Rollout()
	if err != nil {
		t.Fatal(err)
	}
	rollout := object(demo)
	for _, test := range []struct {
		method  string
		request map[string]any
		code    codes.Code
		words   string
	}{
		{"SetWeight", map[string]any{"rollout": []byte(`{"spec": {"replicas": "many"}}`)}, codes.InvalidArgument, "SetWeight: invalid argument: rollout: invalid type"},
		{"SetWeight", map[string]any{}, codes.InvalidArgument, "rollout: EOF"},
		{"SetHeaderRoute", map[string]any{"rollout": rollout, "setHeaderRoute": []byte(`"x"`)}, codes.InvalidArgument, "set_header_route: "},
		{"SetMirrorRoute", map[string]any{"rollout": rollout, "setMirrorRoute": []byte(`7`)}, codes.InvalidArgument, "set_mirror_route: "},
		{"SetWeight", map[string]any{"rollout": []byte(`{"metadata": {"namespace": "shop", "name": "demo"}}`)}, codes.FailedPrecondition, "shop/demo"},
	} {
		_, err := plugin.call(test.method, test.request)
		if status.Code(err) != test.code || !strings.Contains(message(err), test.words) {
			t.Errorf("%s: %v, want %s with %q", test.method, err, test.code, test.words)
		}
	}
}

func TestMultiplexingOfTheBrokerIsRefused(t *testing.T) {
	h := newHost(t, goplugin.ProtocolGRPC, func(config *goplugin.ClientConfig) { config.GRPCBrokerMultiplex = true })
	if _, err := h.Client.Client(); !errors.Is(err, goplugin.ErrGRPCBrokerMuxNotSupported) {
		t.Errorf("%v, want %v", err, goplugin.ErrGRPCBrokerMuxNotSupported)
	}
}

// contents returns the files of a directory with their content; a socket has none.
func contents(t *testing.T, directory string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, entry := range entries {
		found[entry.Name()] = ""
		if entry.Type().IsRegular() {
			text, err := os.ReadFile(filepath.Join(directory, entry.Name()))
			if err != nil {
				t.Fatal(err)
			}
			found[entry.Name()] = string(text)
		}
	}
	return found
}
