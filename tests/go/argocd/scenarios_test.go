package host

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/argoproj/argo-cd/v3/applicationset/services/plugin"
)

// scenarios lists all tests. Levels: 1, the client; 2, generated Applications; 3, reconciled Applications.
var scenarios = []struct {
	number, level int
	what          string
	test          func(*testing.T)
}{
	{1, 1, "the happy path", happyPath},
	{2, 1, "no parameters", noParameters},
	{3, 1, "every kind of input", everyKindOfInput},
	{4, 1, "unknown keys in the envelope", alienEnvelope},
	{5, 1, "forms of baseUrl", baseURLs},
	{6, 1, "wrong token and no token", wrongToken},
	{7, 1, "rotation of the token", rotatedToken},
	{8, 1, "invalid requests", oddRequests},
	{9, 1, "an upstream slower than the deadline", slowUpstream},
	{10, 1, "a client with a shorter timeout than the upstream", impatientClient},
	{11, 1, "idle connections", idleConnections},
	{12, 1, "termination during a call", terminated},
	{13, 1, "a private CA", privateCA},
	{14, 1, "parallel identical calls", parallelCalls},
	{15, 1, "mutated requests", mutilatedRequests},
	{16, 2, "errors of the set-up", setUpErrors},
	{17, 2, "a Secret without the key", missingSecretKey},
	{18, 2, "templates of each kind", templatesOfEachKind},
	{19, 2, "values and selector", valuesAndSelector},
	{20, 2, "the input in templates", generatorInput},
	{21, 2, "two pull requests, one built", twoBranches},
	{22, 2, "a failing registry", failingRegistry},
	{23, 2, "a hidden repository", hiddenRepository},
	{24, 2, "matrix with flat parameters", flatMatrix},
	{25, 2, "unresolved templates", unresolvedTemplates},
	{26, 2, "merge of rows and by alias", mergedRows},
	{27, 2, "empty and false overrides", emptyOverrides},
	{28, 2, "the documented ApplicationSets", documentedSets},
	{29, 3, "an outage of the registry", registryOutage},
	{30, 3, "an empty answer where it is allowed", emptyOnPurpose},
	{31, 3, "an empty answer by mistake", emptyByMistake},
	{32, 3, "answers that delete, from another plugin", emptyAnswers},
	{33, 3, "duplicate names", duplicateNames},
	{34, 3, "the requeue time", requeueTimes},
	{35, 3, "a canary in progress", walkingCanary},
	{36, 3, "no automated sync during a canary", frozenCanary},
	{37, 3, "the server's generate", askedByTheServer},
	{38, 2, "slugs like those of Argo CD", argoSlugs},
	{39, 3, "a refresh by the generator", refreshedSet},
	{40, 2, "keys of other generators", keysOfOtherGenerators},
}

func TestScenarios(t *testing.T) {
	verdicts := make([]string, len(scenarios))
	t.Cleanup(func() {
		for i, s := range scenarios {
			if verdicts[i] != "" {
				fmt.Printf("%2d  L%d  %-44s %s\n", s.number, s.level, s.what, verdicts[i])
			}
		}
	})
	for i, s := range scenarios {
		t.Run(fmt.Sprintf("%02d %s", s.number, s.what), func(t *testing.T) {
			t.Parallel()
			verdicts[i] = "FAILED"
			t.Cleanup(func() {
				if !t.Failed() {
					verdicts[i] = "ok"
				}
			})
			s.test(t)
		})
	}
}

var (
	// binary is the path of the program under test.
	binary string
	// resolver maps the names of Services to addresses.
	resolver sync.Map
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		os.Exit(call(url))
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the scenarios cannot run:", err)
		code = 1
	}
	os.Exit(code)
}

// run runs the tests, and prints the log of Argo CD's packages only if a test fails.
func run(m *testing.M) (code int, err error) {
	binary = os.Getenv("GENERATOR_BINARY")
	if !filepath.IsAbs(binary) {
		return 0, fmt.Errorf("GENERATOR_BINARY must be the absolute path of gloo-appset-generator, it is %q", binary)
	}
	log, err := os.CreateTemp("", "argocd-host-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(log.Name())
	logrus.SetOutput(log)
	dialer := &net.Dialer{}
	http.DefaultTransport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(address)
		if known, ok := resolver.Load(host); ok {
			address = known.(string)
		}
		return dialer.DialContext(ctx, network, address)
	}
	code = m.Run()
	if code != 0 {
		_, err = io.Copy(os.Stderr, io.NewSectionReader(log, 0, math.MaxInt64))
	}
	return code, err
}

// call runs in a child process: it makes one call and prints the result.
func call(url string) int {
	service, err := plugin.NewPluginService("fb-matrix", url, token, 0)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	response, err := service.List(context.Background(), nil)
	fmt.Println(response, err)
	if err != nil {
		return 1
	}
	return 0
}
