// Records what a controller writes on a dispensed traffic router's stream, for Rust tests that replay it:
//
//	go -C tests/go/rollouts run ./record ../../../crates/rollouts-rpc/tests/data
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"e2e.test/rollouts/fixture"
	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	plugin "github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
)

// The modules that decide what is on the wire.
var modules = []string{
	"github.com/argoproj/argo-rollouts", "github.com/hashicorp/go-plugin", "k8s.io/api", "k8s.io/apimachinery",
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: record DIRECTORY")
	}
	rollout, err := fixture.Rollout()
	check(err)
	stream, calls := record(rollout)
	manifest := fmt.Sprintf("Written by tests/go/rollouts/record with %s and\n", runtime.Version())
	for _, module := range modules {
		manifest += fmt.Sprintf("  %s %s\n", module, version(module))
	}
	manifest += "\n"
	name := "router-" + strings.TrimPrefix(version(modules[0]), "v")
	for _, file := range []struct {
		name    string
		content []byte
	}{
		{name + ".gob", stream},
		{name + ".calls", []byte(calls)},
	} {
		check(os.WriteFile(filepath.Join(os.Args[1], file.name), file.content, 0o644))
		manifest += fmt.Sprintf("%x  %s\n", sha256.Sum256(file.content), file.name)
	}
	check(os.WriteFile(filepath.Join(os.Args[1], "MANIFEST"), []byte(manifest), 0o644))
}

// record makes every call twice, the second time with all types known. It returns the bytes, and a line for each call
// with its method and the offset at which it ends.
func record(rollout *v1alpha1.Rollout) (stream []byte, calls string) {
	host, peer := net.Pipe()
	server := rpc.NewServer()
	service, err := (&plugin.RpcTrafficRouterPlugin{Impl: silent{}}).Server(nil)
	check(err)
	check(server.RegisterName("Plugin", service))
	go server.ServeConn(peer)

	conn := &recorder{ReadWriteCloser: host}
	client, err := plugin.RpcTrafficRouterPlugin{}.Client(nil, rpc.NewClient(conn))
	check(err)
	router := client.(plugin.TrafficRouterPlugin)
	steps := rollout.Spec.Strategy.Canary.Steps
	none := []v1alpha1.WeightDestination(nil)
	additional := []v1alpha1.WeightDestination{
		{}, {Weight: 5, ServiceName: "demo-experiment", PodTemplateHash: "5f6c7d8"},
	}
	call := func(method string, result types.RpcError) {
		if result.HasError() {
			log.Fatalf("%s: %s", method, result)
		}
		calls += fmt.Sprintf("%s %d\n", method, len(conn.written))
	}
	for _, round := range []struct {
		weight     int32
		additional []v1alpha1.WeightDestination
	}{{25, none}, {50, additional}} {
		call("InitPlugin", router.InitPlugin())
		router.Type()
		call("Type", types.RpcError{})
		call("SetWeight", router.SetWeight(rollout, round.weight, round.additional))
		_, result := router.VerifyWeight(rollout, round.weight, round.additional)
		call("VerifyWeight", result)
		call("UpdateHash", router.UpdateHash(rollout, "6d4f8b7c5", "7c9d6b5f4", round.additional))
		call("SetHeaderRoute", router.SetHeaderRoute(rollout, steps[3].SetHeaderRoute))
		call("SetMirrorRoute", router.SetMirrorRoute(rollout, steps[4].SetMirrorRoute))
		call("RemoveManagedRoutes", router.RemoveManagedRoutes(rollout))
	}
	return conn.written, calls
}

// recorder keeps what the client writes.
type recorder struct {
	io.ReadWriteCloser
	written []byte
}

func (r *recorder) Write(bytes []byte) (int, error) {
	r.written = append(r.written, bytes...)
	return r.ReadWriteCloser.Write(bytes)
}

// silent answers every call with success.
type silent struct{}

func (silent) InitPlugin() (none types.RpcError) { return }
func (silent) UpdateHash(*v1alpha1.Rollout, string, string, []v1alpha1.WeightDestination) (none types.RpcError) {
	return
}
func (silent) SetWeight(*v1alpha1.Rollout, int32, []v1alpha1.WeightDestination) (none types.RpcError) {
	return
}
func (silent) SetHeaderRoute(*v1alpha1.Rollout, *v1alpha1.SetHeaderRoute) (none types.RpcError) {
	return
}
func (silent) SetMirrorRoute(*v1alpha1.Rollout, *v1alpha1.SetMirrorRoute) (none types.RpcError) {
	return
}
func (silent) VerifyWeight(*v1alpha1.Rollout, int32, []v1alpha1.WeightDestination) (verified types.RpcVerified, none types.RpcError) {
	return types.Verified, none
}
func (silent) RemoveManagedRoutes(*v1alpha1.Rollout) (none types.RpcError) { return }
func (silent) Type() string                                                { return "silent" }

// version is the release of a module that this program was built with.
func version(path string) string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == path {
			return module.Version
		}
	}
	log.Fatalf("not built with %s", path)
	return ""
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
