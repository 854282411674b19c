package host

// The client (level 1): Argo CD's services/plugin against the binary, and plain requests like those of curl.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// hello is the configuration of Argo CD's own example.
const hello = `
static:
  hello:
    inputs: [key1, key2, list, boolean, map]
    sets:
    - {key1: val1, key2: val2}
    - {key1: val2, key2: val2}
`

var helloSets = []map[string]any{{"key1": "val1", "key2": "val2"}, {"key1": "val2", "key2": "val2"}}

// recordings has the requests of each release of Argo CD's client, byte by byte. The generator's own tests replay them.
const recordings = "../../../crates/appset-bin/tests/data"

// release returns the version of Argo CD in go.mod.
func release(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "github.com/argoproj/argo-cd/v3 v")
	version, _, _ := strings.Cut(rest, "\n")
	return version
}

var update = flag.Bool("update", false, "write the requests of Argo CD's client to "+recordings)

func happyPath(t *testing.T) {
	g := start(t, hello)
	sets, err := g.list(t, `{"source": "hello"}`)
	if err != nil || !reflect.DeepEqual(sets, helloSets) {
		t.Errorf("listed %v, %v", sets, err)
	}
	directory := filepath.Join(recordings, "argo-cd-"+release(t))
	if *update {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, parameters := range map[string]string{
		"no-parameters": "",
		"static":        `{"source": "hello"}`,
		"image-digests": `{"source": "image-digests", "tag": "feature-1", "images": {"front": "myorg/front", "back": "myorg/back"}}`,
		"every-kind":    everyKind,
	} {
		got := request(t, parameters)
		file := filepath.Join(directory, name+".http")
		if *update {
			write(t, file, string(got))
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the client sends %q, the recording has %q, %v", file, got, want, err)
		}
	}
}

// request returns the request of Argo CD's client for the parameters.
func request(t *testing.T, parameters string) []byte {
	t.Helper()
	const host = "gloo-appset-generator.argocd.svc.cluster.local"
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	resolver.Store(host, listener.Addr().String())
	var sent bytes.Buffer
	done := make(chan error)
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			done <- err
			return
		}
		defer connection.Close()
		request, err := http.ReadRequest(bufio.NewReader(io.TeeReader(connection, &sent)))
		if err == nil {
			_, err = io.Copy(io.Discard, request.Body)
		}
		fmt.Fprint(connection, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
		done <- err
	}()
	if _, err := list(t, service(t, "http://"+host, token, 0), parameters); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return sent.Bytes()
}

func noParameters(t *testing.T) {
	g := start(t, hello+"  other: {sets: [{key1: val1}]}\n")
	_, err := g.list(t, "")
	refused(t, err, "API error with status code 400", "source")
	if code := g.post(t, `{"applicationSetName":"x","input":{}}`); !strings.Contains(code.body, `"invalid_input"`) {
		t.Errorf("answered %q", code.body)
	}

	// With only one source, `source` is optional.
	sets, err := start(t, hello).list(t, "")
	if err != nil || !reflect.DeepEqual(sets, helloSets) {
		t.Errorf("listed %v, %v", sets, err)
	}
}

const everyKind = `{"source": "hello", "key1": "grün <b>&amp;</b>  ☸", "key2": 8080, "list": ["a", "b"], "boolean": true,
"map": {"nested": {"deep": "value"}, "number": 1000000, "nothing": null}}`

// The input is returned under `input`, in a form for templates: numbers become strings, so that none renders as 1e+06.
func everyKindOfInput(t *testing.T) {
	sets, err := start(t, hello).list(t, everyKind)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"key1": "grün <b>&amp;</b>  ☸", "key2": "8080", "list": []any{"a", "b"}, "boolean": true,
		"map": map[string]any{"nested": map[string]any{"deep": "value"}, "number": "1000000"},
	}
	for _, set := range sets {
		if !reflect.DeepEqual(set["input"], want) {
			t.Errorf("echoed %v, want %v", set["input"], want)
		}
	}
}

func alienEnvelope(t *testing.T) {
	g := start(t, hello)
	answer := g.post(t, `{"applicationSetName":"x","applicationSetNamespace":"y","input":{"parameters":{"source":"hello"},"more":1}}`)
	if answer.status != http.StatusOK {
		t.Errorf("answered %d: %s", answer.status, answer.body)
	}
}

func baseURLs(t *testing.T) {
	g := start(t, hello+`
profiles:
  default: {}
  team-a: {sources: [hello]}
`)
	resolver.Store("gloo-appset-generator.argocd.svc.cluster.local.", strings.TrimPrefix(g.api, "http://"))
	for _, base := range []string{
		g.api, g.api + "/", g.api + "/profiles/team-a", g.api + "/profiles/team-a/",
		"http://gloo-appset-generator.argocd.svc.cluster.local.",
		"http://gloo-appset-generator.argocd.svc.cluster.local./profiles/team-a",
	} {
		sets, err := list(t, service(t, base, token, 0), `{"source": "hello"}`)
		if err != nil || !reflect.DeepEqual(sets, helloSets) {
			t.Errorf("%s: listed %v, %v", base, sets, err)
		}
	}
	_, err := list(t, service(t, g.api+"/profiles/team-b", token, 0), `{"source": "hello"}`)
	refused(t, err, "status code 404", "team-b")
}

func wrongToken(t *testing.T) {
	g := start(t, hello)
	for _, sent := range []string{"", "wrong", token + "x", token[1:], "$key"} {
		_, err := list(t, service(t, g.api, sent, 0), `{"source": "hello"}`)
		refused(t, err, "error get api 'fb-matrix': API error with status code 403: ")
	}
	for _, authorization := range []string{"", "Basic eDp5", "Bearer", "Bearer ", "Bearer wrong"} {
		answer := g.send(t, http.MethodPost, path, authorization, `{"input":{"parameters":{"source":"hello"}}}`)
		if answer.status != http.StatusForbidden || strings.Contains(answer.body, "val1") || strings.Contains(answer.body, "wrong") {
			t.Errorf("%q is answered %d: %s", authorization, answer.status, answer.body)
		}
		answer.message(t)
	}
}

func rotatedToken(t *testing.T) {
	g := start(t, hello)
	lists := func(token string) bool {
		_, err := list(t, service(t, g.api, token, 0), `{"source": "hello"}`)
		return err == nil
	}
	if lists("new") || !lists(token) {
		t.Fatal("want the old token only")
	}
	g.admit(t, "new", "new")
	if !lists("new") || !lists(token) {
		t.Error("want both tokens")
	}
	if err := os.Remove(filepath.Join(g.tokens, "argocd")); err != nil {
		t.Fatal(err)
	}
	g.reload(t)
	if !lists("new") || lists(token) {
		t.Error("want the new token only")
	}
}

func oddRequests(t *testing.T) {
	g := start(t, hello)
	const good = `{"input":{"parameters":{"source":"hello"}}}`
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{http.MethodPost, path, good, 200},
		{http.MethodPost, "/api/v1/getparams", good, 404},
		{http.MethodPost, "/", good, 404},
		{http.MethodGet, path, "", 405},
		{http.MethodPut, path, good, 405},
		{http.MethodPost, path, strings.Repeat(" ", 2<<20) + good, 413},
		{http.MethodPost, path, "", 400},
		{http.MethodPost, path, "not JSON", 400},
		{http.MethodPost, path, good[:len(good)-1], 400},
		{http.MethodPost, path, `[]`, 400},
		{http.MethodPost, path, `{"input":{"parameters":[]}}`, 400},
		{http.MethodPost, path, `{"input":{"parameters":{"source":"helo"}}}`, 400},
		{http.MethodPost, path, `{"input":{"parameters":{"source":"hello","kye1":"x"}}}`, 400},
		{http.MethodPost, path, strings.Repeat(`{"input":`, 10000), 400},
	} {
		answer := g.send(t, c.method, c.path, "Bearer "+token, c.body)
		if answer.status != c.status {
			t.Errorf("%s %s of %.60q: status %d, want %d: %s", c.method, c.path, c.body, answer.status, c.status, answer.body)
		}
		if answer.status != http.StatusOK {
			answer.message(t)
			// The body may not have been read completely, so a later call on the connection would fail.
			if !answer.last {
				t.Errorf("%s %s of %.60q: the connection stays open", c.method, c.path, c.body)
			}
		}
		if answer.header.Get("Content-Length") != fmt.Sprint(len(answer.body)) {
			t.Errorf("%s %s of %.60q: Content-Length %q for %d bytes", c.method, c.path, c.body, answer.header.Get("Content-Length"), len(answer.body))
		}
	}
}

func slowUpstream(t *testing.T) {
	r := openRegistry(t)
	r.push(t, "myorg/front", "feature-1")
	gate := newGate(t)
	r.fail("myorg/front", gate.before(r))
	g := start(t, r.config(), "--deadline", "1")
	_, err := g.list(t, front)
	refused(t, err, "API error with status code 504: ")
}

func impatientClient(t *testing.T) {
	r := openRegistry(t)
	r.push(t, "myorg/front", "feature-1")
	gate := newGate(t)
	r.fail("myorg/front", gate.before(r))
	g := start(t, r.config())
	_, err := list(t, service(t, g.api, token, 1), front)
	refused(t, err, "Client.Timeout exceeded")
	// The registry sees that the request is cancelled: the generator stops work without a caller.
	<-gate.arrived
	select {
	case <-gate.left:
	case <-time.After(20 * time.Second):
		t.Error("the request to the registry is not cancelled with its caller")
	}
}

// If the server closes an idle connection first, a call fails and the controller waits for three minutes. Argo CD's client
// keeps idle connections for 90 s.
func idleConnections(t *testing.T) {
	g := start(t, hello)
	var waiting sync.WaitGroup
	defer waiting.Wait()

	waiting.Go(func() {
		client := service(t, g.api, token, 0)
		for round := range 2 {
			if round == 1 {
				time.Sleep(61 * time.Second)
			}
			reused := false
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused },
			})
			if _, err := client.List(ctx, pluginParameters(t, `{"source": "hello"}`)); err != nil {
				t.Errorf("call %d: %v", round, err)
			}
			if reused != (round == 1) {
				t.Errorf("call %d: reuses a connection: %v", round, reused)
			}
		}
	})

	connection, err := net.Dial("tcp", strings.TrimPrefix(g.api, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	answers := bufio.NewReader(connection)
	for round := range 2 {
		if round == 1 {
			time.Sleep(95 * time.Second)
		}
		body := `{"input":{"parameters":{"source":"hello"}}}`
		fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", path, token, len(body), body)
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatalf("call %d: %v", round, err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("call %d: %s, %v", round, response.Status, err)
		}
	}
}

func terminated(t *testing.T) {
	r := openRegistry(t)
	r.push(t, "myorg/front", "feature-1")
	gate := newGate(t)
	r.fail("myorg/front", gate.before(r))
	g := start(t, r.config())
	outcome := make(chan error, 1)
	go func() {
		_, err := g.list(t, front)
		outcome <- err
	}()
	<-gate.arrived
	g.terminate(t)
	eventually(t, "no new connection is accepted", func() bool {
		connection, err := net.Dial("tcp", strings.TrimPrefix(g.api, "http://"))
		if err == nil {
			connection.Close()
		}
		return err != nil
	})
	gate.open()
	if err := <-outcome; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	select {
	case <-g.ended:
		if code := g.process.ProcessState.ExitCode(); code != 0 {
			t.Errorf("ended with status %d", code)
		}
	case <-time.After(time.Minute):
		t.Error("the generator does not end")
	}
}

// A process reads its trusted certificates once, so a child process makes the call.
func privateCA(t *testing.T) {
	certificate, key := certificate(t)
	g := start(t, hello, "--tls-cert", certificate, "--tls-key", key)
	url := "https" + strings.TrimPrefix(g.api, "http")
	if out, err := child(t, url, "SSL_CERT_FILE="+certificate); err != nil || !strings.Contains(out, "val1") {
		t.Errorf("with the CA: %v, %s", err, out)
	}
	if out, err := child(t, url, "SSL_CERT_FILE="+os.DevNull, "SSL_CERT_DIR="+t.TempDir()); err == nil || !strings.Contains(out, "x509: certificate signed by unknown authority") {
		t.Errorf("without the CA: %v, %s", err, out)
	}
}

const childURL = "GENERATOR_TEST_CALLS"

// child runs this program as a client of the URL (see TestMain).
func child(t *testing.T, url string, variables ...string) (string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(append(os.Environ(), childURL+"="+url), variables...)
	output, err := command.CombinedOutput()
	return string(output), err
}

func parallelCalls(t *testing.T) {
	r := openRegistry(t)
	digest := r.push(t, "myorg/front", "feature-1")
	gate := newGate(t)
	r.fail("myorg/front", gate.before(r))
	g := start(t, r.config())
	answers := make(chan string, 50)
	for range cap(answers) {
		go func() {
			sets, err := g.list(t, front)
			answers <- fmt.Sprint(sets, err)
		}()
	}
	<-gate.arrived
	gate.open()
	for range cap(answers) {
		if answer := <-answers; !strings.Contains(answer, digest) || !strings.HasSuffix(answer, "<nil>") {
			t.Errorf("answered %s", answer)
		}
	}
	if asked := r.manifests(); len(asked) != 1 {
		t.Errorf("the registry was asked %d times: %v", len(asked), asked)
	}
}

// The answer to any request is parameters or an error in the form that Argo CD shows, never an empty list.
func mutilatedRequests(t *testing.T) {
	g := start(t, hello)
	source := rand.New(rand.NewPCG(1, 2))
	seed := fmt.Sprintf(`{"applicationSetName":"x","input":{"parameters":%s}}`, everyKind)
	fragments := []string{`"`, `{`, `}`, `[`, `]`, `,`, `:`, `null`, `0`, `1e999`, `\u0000`, `\ud800`, "\x00", "\xff", "\n", "<no value>", "{{x}}", `"source"`}
	for range 2000 {
		body := []byte(seed)
		for range 1 + source.IntN(4) {
			at := source.IntN(len(body))
			end := min(len(body), at+source.IntN(12))
			fragment := fragments[source.IntN(len(fragments))]
			body = append(body[:at:at], append([]byte(fragment), body[end:]...)...)
		}
		answer := g.post(t, string(body))
		if answer.status != http.StatusOK {
			answer.message(t)
			continue
		}
		var sets struct {
			Output struct{ Parameters []map[string]any }
		}
		if err := json.Unmarshal([]byte(answer.body), &sets); err != nil || len(sets.Output.Parameters) != len(helloSets) {
			t.Errorf("%q is answered %q", body, answer.body)
		}
	}
}
