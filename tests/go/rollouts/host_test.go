package host

import (
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/client"
	"github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/config"
	"github.com/argoproj/argo-rollouts/utils/defaults"
	"github.com/argoproj/argo-rollouts/utils/plugin"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
)

// The client package starts one plugin process for each of these names.
const (
	methods     = "solo-io/glooplatform"
	badInput    = "e2e/bad-input"
	unreachable = "e2e/unreachable"
	wireTypes   = "e2e/wire-types"
	workers     = "e2e/workers"
	idle        = "e2e/idle"
	killed      = "e2e/killed"
	figures     = "e2e/figures"
	metered     = "e2e/metered"
	samePort    = "e2e/same-port"

	metricProvider = "e2e/metric-provider"
	stepPlugin     = "e2e/step"
)

// environment is the shared environment of the tests.
var environment struct {
	binary    string // absolute path of the plugin as it was built
	testdata  string
	directory string              // the controller's working directory
	tables    string              // has a directory of RouteTables for each plugin name
	args      map[string][]string // by plugin name
	variables []string            // environment variables of the processes
	metrics   string              // metrics address of metered, and also of samePort
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the host tests cannot run:", err)
		code = 1
	}
	os.Exit(code)
}

// run runs the tests, and prints the log of the controller's packages and the plugins only if a test fails.
func run(m *testing.M) (code int, err error) {
	directory, err := os.MkdirTemp("", "rollouts-host-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(directory)
	log, err := os.OpenFile(filepath.Join(directory, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	hclog.DefaultOutput = log
	logrus.SetOutput(log)
	if err := setUp(directory); err != nil {
		return 0, err
	}
	code = m.Run()
	goplugin.CleanupClients()
	if code != 0 {
		_, err = io.Copy(os.Stderr, io.NewSectionReader(log, 0, math.MaxInt64))
	}
	return code, err
}

// setUp configures the plugin and copies it to a directory, like the controller at its start.
func setUp(directory string) error {
	environment.binary = os.Getenv("PLUGIN_BINARY")
	if !filepath.IsAbs(environment.binary) {
		return fmt.Errorf("PLUGIN_BINARY must be the absolute path of the plugin, it is %q", environment.binary)
	}
	var err error
	if environment.testdata, err = filepath.Abs("testdata"); err != nil {
		return err
	}
	// The client reads plugin-bin in the working directory.
	if err := os.Chdir(directory); err != nil {
		return err
	}
	environment.directory = directory
	environment.variables = slices.Clip(os.Environ())
	environment.tables = filepath.Join(directory, "route-tables")

	// Nothing listens on port 1.
	kubeconfig := filepath.Join(directory, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "nowhere",
"contexts": [{"name": "nowhere", "context": {"cluster": "nowhere", "user": "nobody"}}],
"clusters": [{"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}}],
"users": [{"name": "nobody", "user": {}}]}`), 0o600); err != nil {
		return err
	}
	environment.args = map[string][]string{unreachable: {"--kubeconfig", kubeconfig}}
	for _, name := range []string{methods, badInput, wireTypes, workers, idle, killed, figures, metered, samePort} {
		if err := os.CopyFS(tablesOf(name), os.DirFS(filepath.Join(environment.testdata, "route-tables"))); err != nil {
			return err
		}
		environment.args[name] = []string{"--route-tables-dir", tablesOf(name)}
	}
	if environment.metrics, err = freeAddress(); err != nil {
		return err
	}
	for _, name := range []string{metered, samePort} {
		environment.args[name] = append(environment.args[name], "--metrics-address", environment.metrics)
	}
	var routers []registration
	for name, args := range environment.args {
		routers = append(routers, registration{name, "file://" + environment.binary, args})
	}
	examples := os.Getenv("EXAMPLES_DIR")
	if !filepath.IsAbs(examples) {
		return fmt.Errorf("EXAMPLES_DIR must be the absolute path of the built examples, it is %q", examples)
	}
	example := func(name, binary string) []registration {
		return []registration{{Name: name, Location: "file://" + filepath.Join(examples, binary)}}
	}
	lists := map[string]string{}
	for key, registrations := range map[string][]registration{
		"trafficRouterPlugins":  routers,
		"metricProviderPlugins": example(metricProvider, "metric_provider"),
		"stepPlugins":           example(stepPlugin, "step_plugin"),
	} {
		list, err := yaml.Marshal(registrations)
		if err != nil {
			return err
		}
		lists[key] = string(list)
	}
	clientset := fake.NewSimpleClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: defaults.DefaultRolloutsConfigMapName, Namespace: defaults.Namespace()},
		Data:       lists,
	})
	if _, err := config.InitializeConfig(clientset, defaults.DefaultRolloutsConfigMapName); err != nil {
		return err
	}
	return download(clientset)
}

// registration is an entry of the ConfigMap. A release ignores unknown keys.
type registration struct {
	Name     string   `json:"name"`
	Location string   `json:"location"`
	Args     []string `json:"args"`
}

// download takes the clientset since 1.8, for the Secrets that hold headers.
func download(clientset kubernetes.Interface) error {
	switch download := any(plugin.DownloadPlugins).(type) {
	case func(plugin.FileDownloader) error:
		return download(plugin.FileDownloaderImpl{})
	case func(plugin.FileDownloader, kubernetes.Interface) error:
		return download(plugin.FileDownloaderImpl{}, clientset)
	default:
		return fmt.Errorf("the downloader is a %T", download)
	}
}

// tablesOf returns the directory that the process of a plugin name edits.
func tablesOf(name string) string {
	return filepath.Join(environment.tables, filepath.FromSlash(name))
}

// router returns the client of a reconcile, started, initialised and pinged.
func router(t testing.TB, name string) rpc.TrafficRouterPlugin {
	t.Helper()
	handle, err := reconcile(t, name)
	if err != nil {
		t.Fatal(err)
	}
	return handle
}

// Releases before 1.7 have no arguments for a plugin.
var _, takesArguments = reflect.TypeFor[types.PluginItem]().FieldByName("Args")

// Serialises starts, because environment variables replace the arguments of a process.
var starting sync.Mutex

// reconcile requests the plugin like each reconcile, which starts it if it does not run.
func reconcile(t testing.TB, name string) (rpc.TrafficRouterPlugin, error) {
	t.Helper()
	if !takesArguments {
		starting.Lock()
		defer starting.Unlock()
		for arg := range slices.Chunk(environment.args[name], 2) {
			variable := "GLOO_PLUGIN_" + strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(arg[0], "--"), "-", "_"))
			if err := os.Setenv(variable, arg[1]); err != nil {
				t.Fatal(err)
			}
			defer os.Unsetenv(variable)
		}
	}
	return client.GetTrafficPlugin(name)
}

func succeeds(t testing.TB, call string, result types.RpcError) {
	t.Helper()
	if result.HasError() {
		t.Errorf("%s: %s", call, result)
	}
}

// refuses checks that an error is suitable for an Event: one line, without a formatting verb, with the given words.
func refuses(t testing.TB, call string, result types.RpcError, words ...string) {
	t.Helper()
	text := result.ErrorString
	if text == "" {
		t.Errorf("%s: want an error", call)
		return
	}
	if strings.ContainsAny(text, "%\r\n") {
		t.Errorf("%s: not one line without a verb: %q", call, text)
	}
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%s: %q does not contain %q", call, text, word)
		}
	}
}

// verifies checks that VerifyWeight confirms the weight.
func verifies(t testing.TB, call string, verified types.RpcVerified, result types.RpcError) {
	t.Helper()
	succeeds(t, call, result)
	if verified != types.Verified {
		t.Errorf("%s: answered %d, want verified", call, verified)
	}
}

// spec reads a table's spec as a comparable value.
func spec(t testing.TB, pluginName, table string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(tablesOf(pluginName), table+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, text)["spec"].(map[string]any)
}

func parse(t testing.TB, text []byte) map[string]any {
	t.Helper()
	var document map[string]any
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	return document
}

// weights returns the destinations of the route "reviews" with their explicit weights.
func weights(t testing.TB, spec map[string]any) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, each := range spec["http"].([]any) {
		route := each.(map[string]any)
		if route["name"] != "reviews" {
			continue
		}
		for _, each := range route["forwardTo"].(map[string]any)["destinations"].([]any) {
			destination := each.(map[string]any)
			weight, _ := destination["weight"].(float64)
			found[destination["ref"].(map[string]any)["name"].(string)] = int(weight)
		}
	}
	return found
}

// files returns the exact contents of a plugin's directory.
func files(t testing.TB, pluginName string) map[string]string {
	t.Helper()
	contents := map[string]string{}
	root := os.DirFS(tablesOf(pluginName))
	err := fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(root, path)
		contents[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return contents
}

// eventually polls until the condition holds, and fails the test after a deadline.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
