package host

import (
	"net"
	netrpc "net/rpc"
	"os/exec"
	"testing"

	goplugin "github.com/hashicorp/go-plugin"

	"github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
)

// raw dispenses the client of net/rpc, which calls any method.
type raw struct{}

func (raw) Server(*goplugin.MuxBroker) (any, error) { return nil, nil }

func (raw) Client(_ *goplugin.MuxBroker, client *netrpc.Client) (any, error) { return client, nil }

// A later controller may call methods that no release has yet.
func TestAnUnknownMethodIsRefusedAsInGo(t *testing.T) {
	t.Parallel()
	process := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: goplugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "ARGO_ROLLOUTS_RPC_PLUGIN", MagicCookieValue: "trafficrouter"},
		Plugins:         map[string]goplugin.Plugin{"RpcTrafficRouterPlugin": raw{}},
		Cmd:             exec.Command(environment.binary, environment.args[methods]...),
	})
	t.Cleanup(process.Kill)
	session, err := process.Client()
	if err != nil {
		t.Fatal(err)
	}
	dispensed, err := session.Dispense("RpcTrafficRouterPlugin")
	if err != nil {
		t.Fatal(err)
	}
	ours := dispensed.(*netrpc.Client)

	served, err := new(rpc.RpcTrafficRouterPlugin).Server(nil)
	if err != nil {
		t.Fatal(err)
	}
	server := netrpc.NewServer()
	if err := server.RegisterName("Plugin", served); err != nil {
		t.Fatal(err)
	}
	host, plugin := net.Pipe()
	go server.ServeConn(plugin)
	theirs := netrpc.NewClient(host)
	t.Cleanup(func() { _ = theirs.Close() })

	var answer any
	for _, method := range []string{"Plugin.GetWeightUpdateDeadline", "Plugin.setWeight", "Plugin.", "Other.Type", "a.Plugin.Type", "Type"} {
		for _, argument := range []any{"text", 7, true, []string{"a", "b"}, map[string]int{"a": 1}, struct{ Deadline int64 }{5}} {
			want, got := theirs.Call(method, argument, &answer), ours.Call(method, argument, &answer)
			if want == nil || got == nil || got.Error() != want.Error() {
				t.Errorf("%q: %v, want %v", method, got, want)
			}
		}
	}
	var name string
	if err := ours.Call("Plugin.Type", new(any), &name); err != nil || name == "" {
		t.Errorf("Type: %q, %v", name, err)
	}
}
