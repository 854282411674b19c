package host

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	authtoken "github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/opencontainers/go-digest"
)

const (
	registryUser     = "reader"
	registryPassword = "a-password-of-the-tests"
)

// registry is the CNCF's registry with storage in memory. It records requests, and can be made to fail.
type registry struct {
	host  string
	inner http.Handler
	// Signs the tokens of the token endpoint; nil without authentication.
	signer jose.Signer

	mutex  sync.Mutex
	asked  []string
	faults map[string]http.HandlerFunc
}

// openRegistry starts a registry without authentication.
func openRegistry(t testing.TB) *registry {
	t.Helper()
	r := &registry{faults: map[string]http.HandlerFunc{}}
	r.serve(t, nil)
	return r
}

// privateRegistry starts a registry with a token endpoint. One user gets access to every repository, others to none.
func privateRegistry(t testing.TB) *registry {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{
		Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "tests"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "tests"}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "keys.json")
	write(t, file, string(keys))
	r := &registry{signer: signer, faults: map[string]http.HandlerFunc{}}
	r.serve(t, func(host string) configuration.Auth {
		return configuration.Auth{"token": {
			"realm": "http://" + host + "/token", "service": "tests", "issuer": "tests", "jwks": file,
		}}
	})
	return r
}

func (r *registry) serve(t testing.TB, auth func(host string) configuration.Auth) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.host = listener.Addr().String()
	settings := &configuration.Configuration{
		Storage: configuration.Storage{"inmemory": {}, "maintenance": {"uploadpurging": map[any]any{"enabled": false}}},
	}
	if auth != nil {
		settings.Auth = auth(r.host)
	}
	settings.HTTP.Secret = "shared by the replicas of this one"
	ctx, cancel := context.WithCancel(context.Background())
	r.inner = handlers.NewApp(ctx, settings)
	serveOn(t, listener, r)
	t.Cleanup(cancel)
}

func (r *registry) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	if request.URL.Path == "/token" {
		r.authorize(writer, request)
		return
	}
	repository, reference, manifest := strings.Cut(strings.TrimPrefix(request.URL.Path, "/v2/"), "/manifests/")
	r.mutex.Lock()
	fault := r.faults[repository]
	challenged := r.signer != nil && request.Header.Get("Authorization") == ""
	if manifest && !challenged {
		r.asked = append(r.asked, repository+":"+reference)
	}
	r.mutex.Unlock()
	if fault != nil {
		fault(writer, request)
		return
	}
	r.inner.ServeHTTP(writer, request)
}

// config returns a configuration of the generator with this registry only and without credentials.
func (r *registry) config() string {
	return fmt.Sprintf("imageDigests:\n  registries: {%q: {plainHttp: true}}\n", r.host)
}

// configAs returns the configuration with credentials of a user.
func (r *registry) configAs(t testing.TB, user, password string) string {
	t.Helper()
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	file := filepath.Join(t.TempDir(), "config.json")
	write(t, file, fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, r.host, auth))
	return r.config() + "  dockerConfig: " + file + "\n"
}

// fail makes a handler answer the requests for a repository; nil restores the registry.
func (r *registry) fail(repository string, fault http.HandlerFunc) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.faults[repository] = fault
}

// manifests returns the images whose manifests were requested, in order, without requests that are answered by a challenge.
func (r *registry) manifests() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return append([]string{}, r.asked...)
}

// authorize is the token endpoint.
func (r *registry) authorize(writer http.ResponseWriter, request *http.Request) {
	user, password, _ := request.BasicAuth()
	var access []*authtoken.ResourceActions
	for _, scope := range request.URL.Query()["scope"] {
		kind, rest, _ := strings.Cut(scope, ":")
		name, _, _ := strings.Cut(rest, ":")
		if user == registryUser && password == registryPassword {
			access = append(access, &authtoken.ResourceActions{Type: kind, Name: name, Actions: []string{"pull"}})
		}
	}
	text, err := r.token(access)
	if err != nil {
		http.Error(writer, err.Error(), http.StatusInternalServerError)
		return
	}
	writer.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(writer).Encode(map[string]string{"token": text})
}

func (r *registry) token(access []*authtoken.ResourceActions) (string, error) {
	now := time.Now()
	return jwt.Signed(r.signer).Claims(authtoken.ClaimSet{
		Issuer: "tests", Audience: authtoken.AudienceList{"tests"}, Access: access,
		NotBefore: now.Add(-time.Minute).Unix(), IssuedAt: now.Unix(), Expiration: now.Add(time.Hour).Unix(),
	}).Serialize()
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

// push stores an image that differs by its tag, and returns its digest.
func (r *registry) push(t testing.TB, repository, tag string) string {
	t.Helper()
	config := `{"architecture":"amd64","os":"linux","config":{"Labels":{"tag":"` + tag + `"}}}`
	location := r.store(t, http.MethodPost, "/v2/"+repository+"/blobs/uploads/", repository, "", "")
	separator := "?"
	if strings.Contains(location, "?") {
		separator = "&"
	}
	id := digest.FromString(config).String()
	r.store(t, http.MethodPut, location+separator+"digest="+id, repository, "application/octet-stream", config)
	manifest := `{"schemaVersion":2,"mediaType":"` + manifestType + `","config":{` +
		`"mediaType":"application/vnd.oci.image.config.v1+json","digest":"` + id + `","size":` + jsonOf(t, len(config)) +
		`},"layers":[]}`
	r.store(t, http.MethodPut, "/v2/"+repository+"/manifests/"+tag, repository, manifestType, manifest)
	return digest.FromString(manifest).String()
}

// store sends a request with permission to write, and returns the Location of the answer.
func (r *registry) store(t testing.TB, method, target, repository, contentType, body string) string {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	request.Host = r.host
	request.Header.Set("Content-Type", contentType)
	if r.signer != nil {
		text, err := r.token([]*authtoken.ResourceActions{{Type: "repository", Name: repository, Actions: []string{"pull", "push"}}})
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+text)
	}
	recorder := httptest.NewRecorder()
	r.inner.ServeHTTP(recorder, request)
	response := recorder.Result()
	if response.StatusCode >= http.StatusMultipleChoices {
		text, _ := io.ReadAll(response.Body)
		t.Fatalf("%s %s: %s: %s", method, target, response.Status, text)
	}
	return response.Header.Get("Location")
}

// answering is a fault: an answer with only a status.
func answering(status int) http.HandlerFunc {
	return func(writer http.ResponseWriter, _ *http.Request) { writer.WriteHeader(status) }
}

// gate is a fault that blocks requests until it opens.
type gate struct {
	arrived, left, opened chan struct{}
	once                  sync.Once
}

func newGate(t testing.TB) *gate {
	g := &gate{arrived: make(chan struct{}, 100), left: make(chan struct{}, 100), opened: make(chan struct{})}
	t.Cleanup(g.open)
	return g
}

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// before passes requests to the registry once the gate is open. It reports callers that disconnect.
func (g *gate) before(r *registry) http.HandlerFunc {
	return func(writer http.ResponseWriter, request *http.Request) {
		g.arrived <- struct{}{}
		select {
		case <-g.opened:
			r.inner.ServeHTTP(writer, request)
		case <-request.Context().Done():
			g.left <- struct{}{}
		}
	}
}
