// Command record records what this release's client packages write to the stream of a dispensed plugin, for Rust tests that
// replay it. `cargo xtask record` runs it for every release. Prints the versions of the recording's modules.
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	goplugin "github.com/hashicorp/go-plugin"

	"github.com/argoproj/argo-rollouts/utils/plugin/types"

	"e2e.test/rollouts/fixture"
)

// The modules that determine the bytes on the wire.
var modules = []string{
	"github.com/argoproj/argo-rollouts", "github.com/hashicorp/go-plugin", "k8s.io/api", "k8s.io/apimachinery",
}

// One recorder for each kind of plugin of this release.
var recordings = map[string]func() recording{"router": recordRouter, "metric": recordMetricProvider}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: record DIRECTORY")
	}
	release := strings.TrimPrefix(version(modules[0]), "v")
	fmt.Printf("argo-rollouts %s, with %s", release, runtime.Version())
	for _, module := range modules[1:] {
		fmt.Printf(", %s %s", module, version(module))
	}
	fmt.Printf("\n  fixtures %s\n", fixture.Sum())
	for _, kind := range slices.Sorted(maps.Keys(recordings)) {
		recorded := recordings[kind]()
		name := filepath.Join(os.Args[1], kind+"-"+release)
		check(os.WriteFile(name+".gob", recorded.written, 0o644))
		check(os.WriteFile(name+".calls", []byte(recorded.calls), 0o644))
		fmt.Printf("  %x  %s.gob\n", sha256.Sum256(recorded.written), filepath.Base(name))
	}
}

// recording has the bytes that a client wrote, and a line for each call with its method and end offset.
type recording struct {
	*connection
	calls string
}

// record returns the host's client of a plugin, and the recording of what it writes.
func record(plugin goplugin.Plugin) (dispensed any, recorded recording) {
	service, err := plugin.Server(nil)
	check(err)
	server := rpc.NewServer()
	check(server.RegisterName("Plugin", service))
	host, peer := net.Pipe()
	go server.ServeConn(peer)
	conn := &connection{ReadWriteCloser: host}
	dispensed, err = plugin.Client(nil, rpc.NewClient(conn))
	check(err)
	return dispensed, recording{connection: conn}
}

// called records the end of a call.
func (r *recording) called(method string, result types.RpcError) {
	if result.HasError() {
		log.Fatalf("%s: %s", method, result)
	}
	r.calls += fmt.Sprintf("%s %d\n", method, len(r.written))
}

// connection records what the client writes.
type connection struct {
	io.ReadWriteCloser
	written []byte
}

func (c *connection) Write(bytes []byte) (int, error) {
	c.written = append(c.written, bytes...)
	return c.ReadWriteCloser.Write(bytes)
}

// silent answers every call with success.
type silent struct{}

var succeeded types.RpcError

func (silent) InitPlugin() types.RpcError { return succeeded }
func (silent) Type() string               { return "silent" }

// version returns the version of a module that this program was built with.
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
