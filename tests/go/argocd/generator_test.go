package host

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/argoproj/argo-cd/v3/applicationset/services/plugin"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
)

const (
	path  = "/api/v1/getparams.execute"
	token = "a-token-of-the-tests"
)

// generator is a process of the binary under test.
type generator struct {
	api, ops string // URLs without a path
	config   string // its file
	tokens   string // a directory with one file per token
	process  *exec.Cmd
	ended    chan struct{}
	log      *log
}

// start runs the generator with a configuration and the token of the tests until the test ends, and waits until it is ready.
func start(t testing.TB, config string, flags ...string) *generator {
	t.Helper()
	return startIn(t, nil, config, flags...)
}

// startIn is start with additional environment variables.
func startIn(t testing.TB, environment []string, config string, flags ...string) *generator {
	t.Helper()
	g := launch(t, environment, config, flags...)
	g.becomesReady(t)
	return g
}

// launch is startIn, but only waits until the generator listens.
func launch(t testing.TB, environment []string, config string, flags ...string) *generator {
	t.Helper()
	directory := t.TempDir()
	g := &generator{
		config: filepath.Join(directory, "config.yaml"),
		tokens: filepath.Join(directory, "tokens"),
		ended:  make(chan struct{}),
		log:    &log{listening: make(chan listening, 2)},
	}
	write(t, g.config, config)
	g.admit(t, "argocd", token)
	g.process = exec.Command(binary, append([]string{
		"--config", g.config, "--tokens-dir", g.tokens,
		"--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
	}, flags...)...)
	g.process.Env = append(os.Environ(), environment...)
	stderr, err := g.process.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.process.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(g.ended)
		g.log.follow(stderr)
		_ = g.process.Wait()
	}()
	t.Cleanup(func() {
		_ = g.process.Process.Kill()
		<-g.ended
		if t.Failed() {
			t.Logf("the generator's log:\n%s", g.log)
		}
	})
	for range 2 {
		select {
		case l := <-g.log.listening:
			if l.Role == "ops" {
				g.ops = "http://" + l.Address
			} else {
				g.api = "http://" + l.Address
			}
		case <-g.ended:
			t.Fatal("the generator ended before it listened")
		case <-time.After(time.Minute):
			t.Fatal("the generator does not listen")
		}
	}
	return g
}

func (g *generator) becomesReady(t testing.TB) {
	t.Helper()
	eventually(t, "the generator is ready", func() bool { return status(t, g.ops+"/readyz") == http.StatusOK })
}

// admit writes a token to the generator's directory of tokens.
func (g *generator) admit(t testing.TB, name, token string) {
	t.Helper()
	if err := os.MkdirAll(g.tokens, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(g.tokens, name), token+"\n")
	g.reload(t)
}

// configure changes the configuration.
func (g *generator) configure(t testing.TB, config string) {
	t.Helper()
	write(t, g.config, config)
	g.reload(t)
}

// reload waits until the generator has read all files again, if it runs.
func (g *generator) reload(t testing.TB) {
	t.Helper()
	if g.process == nil {
		return
	}
	// A reload that was going on may have read a file before the change.
	for range 2 {
		before := g.reloads(t)
		if err := g.process.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the files are read", func() bool { return g.reloads(t) > before })
	}
}

func (g *generator) reloads(t testing.TB) int {
	t.Helper()
	response, err := http.Get(g.ops + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\ngloo_appset_reloads_total ")
	count, _, _ := strings.Cut(rest, "\n")
	reloads, err := strconv.Atoi(count)
	if err != nil {
		t.Fatal(err)
	}
	return reloads
}

// terminate sends SIGTERM, like Kubernetes.
func (g *generator) terminate(t testing.TB) {
	t.Helper()
	if err := g.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// service returns Argo CD's client, as in a reconcile.
func service(t testing.TB, baseURL, token string, timeout int) *plugin.Service {
	t.Helper()
	service, err := plugin.NewPluginService("fb-matrix", baseURL, token, timeout)
	if err != nil {
		t.Fatal(err)
	}
	return service
}

// list requests parameters like Argo CD.
func (g *generator) list(t testing.TB, parameters string) ([]map[string]any, error) {
	t.Helper()
	return list(t, service(t, g.api, token, 0), parameters)
}

func list(t testing.TB, service *plugin.Service, parameters string) ([]map[string]any, error) {
	t.Helper()
	response, err := service.List(t.Context(), pluginParameters(t, parameters))
	if err != nil {
		return nil, err
	}
	return response.Output.Parameters, nil
}

// pluginParameters parses a JSON object; nil for an empty text.
func pluginParameters(t testing.TB, text string) v1alpha1.PluginParameters {
	t.Helper()
	if text == "" {
		return nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &members); err != nil {
		t.Fatal(err)
	}
	parameters := v1alpha1.PluginParameters{}
	for key, value := range members {
		parameters[key] = apiextensionsv1.JSON{Raw: value}
	}
	return parameters
}

// answer is the answer to a request without Argo CD's client.
type answer struct {
	status int
	header http.Header
	body   string
	last   bool // whether the connection is closed after it
}

// post sends a body like `curl -d`.
func (g *generator) post(t testing.TB, body string) answer {
	t.Helper()
	return g.send(t, http.MethodPost, path, "Bearer "+token, body)
}

func (g *generator) send(t testing.TB, method, path, authorization, body string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, g.api+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(text), response.Close}
}

// message returns the text of an error. It checks that the answer is an error in the only form that Argo CD shows.
func (a answer) message(t testing.TB) string {
	t.Helper()
	var body struct {
		Message, Code, RequestID *string
	}
	if a.status < 400 || json.Unmarshal([]byte(a.body), &body) != nil {
		t.Fatalf("status %d, not an error: %q", a.status, a.body)
	}
	for name, member := range map[string]*string{"message": body.Message, "code": body.Code, "requestId": body.RequestID} {
		if member == nil || *member == "" || strings.ContainsAny(*member, "\r\n") || len(*member) > 512 {
			t.Fatalf("status %d: %s is not one line: %q", a.status, name, a.body)
		}
	}
	return *body.Message
}

// log records the output of a process, and reports the addresses on which it listens.
type log struct {
	mutex     sync.Mutex
	text      bytes.Buffer
	listening chan listening
}

type listening struct{ Message, Address, Role string }

func (l *log) follow(stderr io.Reader) {
	for lines := bufio.NewReader(stderr); ; {
		line, err := lines.ReadBytes('\n')
		l.mutex.Lock()
		l.text.Write(line)
		l.mutex.Unlock()
		var record listening
		if json.Unmarshal(line, &record) == nil && record.Message == "listening" {
			l.listening <- record
		}
		if err != nil {
			return
		}
	}
}

func (l *log) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.String()
}

func status(t testing.TB, url string) int {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// refused checks that an error contains all the words.
func refused(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("want an error with %q", words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not contain %q", err, word)
		}
	}
}

// eventually polls until the condition holds, and fails the test after a minute.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func jsonOf(t testing.TB, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// serve starts an HTTP server until the test ends, and returns its URL. Closing a server of httptest would also close the idle
// connections of Argo CD's client in other tests.
func serve(t testing.TB, handler http.HandlerFunc) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, listener, handler)
	return "http://" + listener.Addr().String()
}

func serveOn(t testing.TB, listener net.Listener, handler http.Handler) {
	t.Helper()
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}
