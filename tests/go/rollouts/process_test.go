package host

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	goplugin "github.com/hashicorp/go-plugin"

	"github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
)

// The number of workers is the controller's. Each has its own Rollout and table; together they make two hundred calls.
func TestConcurrentCallsHaveTheirOwnResults(t *testing.T) {
	t.Parallel()
	handle := router(t, workers)
	pattern, err := os.ReadFile(filepath.Join(environment.testdata, "route-tables", "shop.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	for worker := range 10 {
		name := fmt.Sprintf("shop-%d", worker)
		text := strings.Replace(string(pattern), "name: shop\n", "name: "+name+"\n", 1)
		if err := os.WriteFile(filepath.Join(tablesOf(workers), name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		rollout := realisticRollout(t)
		rollout.Name = name
		configure(rollout, fmt.Sprintf(`{"routeTableSelector": {"name": %q}}`, name))
		done.Add(1)
		go func() {
			defer done.Done()
			for round := range 4 {
				desired := int32((3 - round) * (worker + 1))
				if got := handle.Type(); got == "" || strings.Contains(got, "error") {
					t.Errorf("Type: %q", got)
				}
				succeeds(t, "RemoveManagedRoutes", handle.RemoveManagedRoutes(rollout))
				succeeds(t, "UpdateHash", handle.UpdateHash(rollout, "a", "b", nil))
				succeeds(t, "SetWeight", handle.SetWeight(rollout, desired, nil))
				verified, err := handle.VerifyWeight(rollout, desired, nil)
				verifies(t, "VerifyWeight", verified, err)
			}
			want := parse(t, []byte(text))["spec"]
			if got := spec(t, workers, name); !reflect.DeepEqual(got, want) {
				t.Errorf("%s ended as %v, want %v", name, got, want)
			}
		}()
	}
	done.Wait()
}

// yamux closes a session with a stream that is unacknowledged for 75 s. Only waiting that long shows that there is none.
func TestTheSessionOutlivesTheStreamOpenTimeout(t *testing.T) {
	t.Parallel()
	rollout := realisticRollout(t)
	handle := router(t, idle)
	succeeds(t, "SetWeight", handle.SetWeight(rollout, 25, nil))
	started := processes(t, idle)

	time.Sleep(80 * time.Second)

	succeeds(t, "SetWeight", handle.SetWeight(rollout, 50, nil))
	if router(t, idle) != handle || !maps.Equal(processes(t, idle), started) {
		t.Error("the plugin was restarted while it was idle")
	}
}

func TestAKilledPluginIsStartedAgain(t *testing.T) {
	t.Parallel()
	rollout := realisticRollout(t)
	succeeds(t, "SetWeight", router(t, killed).SetWeight(rollout, 25, nil))
	before := processes(t, killed)
	if len(before) != 1 {
		t.Fatalf("want one process, found %v", before)
	}
	for pid := range before {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	// The first reconcile after the kill may fail; a later one starts the plugin.
	var handle rpc.TrafficRouterPlugin
	eventually(t, "the plugin starts again", func() (started bool) {
		var err error
		handle, err = reconcile(t, killed)
		return err == nil
	})
	succeeds(t, "SetWeight", handle.SetWeight(rollout, 50, nil))
	want := map[string]int{"demo-stable": 50, "demo-canary": 50}
	if got := weights(t, spec(t, killed, "shop")); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if after := processes(t, killed); maps.Equal(before, after) {
		t.Errorf("still served by %v", after)
	}
}

// The controller sends Quit and waits for two seconds. It parses the log of the process, and panics on a record whose reserved
// fields are not strings.
func TestQuitEndsTheProcessCleanly(t *testing.T) {
	t.Parallel()
	sockets := t.TempDir()
	var log bytes.Buffer
	// Set by env, because go-plugin appends the variables of this process, whose TMPDIR would win.
	process := exec.Command("env", "TMPDIR="+sockets, environment.binary, "--route-tables-dir", tablesOf(methods))
	process.Env = environment.variables
	host := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: goplugin.HandshakeConfig{
			ProtocolVersion: 1, MagicCookieKey: "ARGO_ROLLOUTS_RPC_PLUGIN", MagicCookieValue: "trafficrouter",
		},
		Plugins: map[string]goplugin.Plugin{"RpcTrafficRouterPlugin": &rpc.RpcTrafficRouterPlugin{}},
		Cmd:     process,
		Stderr:  &log,
	})
	session, err := host.Client()
	if err != nil {
		t.Fatal(err)
	}
	dispensed, err := session.Dispense("RpcTrafficRouterPlugin")
	if err != nil {
		t.Fatal(err)
	}
	succeeds(t, "InitPlugin", dispensed.(rpc.TrafficRouterPlugin).InitPlugin())
	if _, err := session.Dispense("AnotherPlugin"); err == nil {
		t.Error("an unknown plugin was dispensed")
	}
	if sockets := listing(t, sockets); len(sockets) != 1 {
		t.Errorf("want one socket, found %v", sockets)
	}

	host.Kill()

	if process.ProcessState == nil || process.ProcessState.ExitCode() != 0 {
		t.Errorf("ended with %v, want exit status 0", process.ProcessState)
	}
	if left := listing(t, sockets); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	timestamp := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)$`)
	for line := range strings.Lines(log.String()) {
		var record struct {
			Level     string `json:"@level"`
			Message   string `json:"@message"`
			Timestamp string `json:"@timestamp"`
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Errorf("not a log record: %q: %v", line, err)
		} else if record.Level == "" || record.Message == "" || !timestamp.MatchString(record.Timestamp) {
			t.Errorf("not a log record of hclog: %q", line)
		}
	}
}

func TestWithoutAControllerItPrintsInstructions(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	process := exec.Command(environment.binary)
	process.Env = environment.variables
	process.Stdout, process.Stderr = &stdout, &stderr
	err := process.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit status 1", err)
	}
	if stdout.Len() != 0 || !strings.Contains(stderr.String(), "plugin") {
		t.Errorf("printed %q on stdout and %q on stderr", &stdout, &stderr)
	}
}

// A host requests AutoMTLS by sending its certificate. The controller does not request it.
func TestAutoMTLSIsRefused(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	process := exec.Command(environment.binary)
	process.Env = append(os.Environ(), "ARGO_ROLLOUTS_RPC_PLUGIN=trafficrouter", "PLUGIN_CLIENT_CERT=-----BEGIN CERTIFICATE-----")
	process.Stdout, process.Stderr = &stdout, &stderr
	err := process.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit status 1", err)
	}
	if stdout.Len() != 0 || !strings.Contains(stderr.String(), "AutoMTLS (PLUGIN_CLIENT_CERT is set)") {
		t.Errorf("printed %q on stdout and %q on stderr", &stdout, &stderr)
	}
}

// processes returns the pids that run the copy of the binary for a plugin name.
func processes(t testing.TB, name string) map[int]bool {
	t.Helper()
	path := filepath.Join(environment.directory, "plugin-bin", filepath.FromSlash(name))
	pids := map[int]bool{}
	for _, entry := range listing(t, "/proc") {
		if pid, err := strconv.Atoi(entry); err == nil {
			if executable, _ := os.Readlink(filepath.Join("/proc", entry, "exe")); executable == path {
				pids[pid] = true
			}
		}
	}
	return pids
}

func listing(t testing.TB, directory string) []string {
	t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
