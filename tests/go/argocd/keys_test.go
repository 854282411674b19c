package host

import (
	"context"
	"strings"
	"testing"

	"github.com/argoproj/argo-cd/v3/applicationset/generators"
	"github.com/argoproj/argo-cd/v3/applicationset/services/scm_provider"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
)

// files is a Git repository with one file in one directory.
type files struct{ git }

func (files) GetFiles(context.Context, string, string, string, string, bool, *v1alpha1.SourceIntegrity) (map[string][]byte, error) {
	return map[string][]byte{"apps/app.yaml": []byte("own: key")}, nil
}

func (files) GetDirectories(context.Context, string, string, string, bool, *v1alpha1.SourceIntegrity) ([]string, error) {
	return []string{"apps"}, nil
}

// A key at the top that another generator emits would be lost in a matrix, or would stop it.
func keysOfOtherGenerators(t *testing.T) {
	r := openRegistry(t)
	g := start(t, r.config()+hello)
	a := newArgoCD(t, g.api, cluster("c1", map[string]string{"gloo": "managed"}))
	all := a.reconciler.Generators
	all["SCMProvider"] = generators.NewTestSCMProviderGenerator(&scm_provider.MockProvider{Repos: []*scm_provider.Repository{
		{Organization: "myorg", Repository: "shop", URL: "https://git.example.com/shop", Branch: "main", SHA: "0123456789", RepositoryId: 1},
	}})
	all["Git"] = generators.NewGitGenerator(files{}, namespace)
	emitted := map[string]bool{}
	for _, generator := range []string{
		pullRequests(t, "feature-1"),
		"scmProvider: {github: {organization: myorg}, values: {a: b}}",
		"clusters: {values: {a: b}}",
		"clusters: {flatList: true}",
		"git: {repoURL: https://git.example.com/shop, revision: main, directories: [{path: '*'}]}",
		"git: {repoURL: https://git.example.com/shop, revision: main, files: [{path: '*/app.yaml'}]}",
		ours(`{source: hello}`, "values: {a: b}"),
	} {
		set := applicationSet(t, goTemplate, generator, "x", `{{keys . | join " "}}`)
		applications, _, err := a.generated(t, set)
		if err != nil || len(applications) == 0 {
			t.Fatalf("%s: %d Applications, %v", generator, len(applications), err)
		}
		for _, application := range applications {
			for _, key := range strings.Fields(application.Annotations["shown"]) {
				emitted[key] = true
			}
		}
	}
	if len(emitted) < 20 {
		t.Errorf("only %d keys", len(emitted))
	}
	// The keys of the file in Git and of our own set.
	for _, key := range []string{"own", "key1", "key2"} {
		if !emitted[key] {
			t.Errorf("%s is missing", key)
		}
		delete(emitted, key)
	}
	for key := range emitted {
		_, err := g.list(t, `{"source": "image-digests", "tag": "x", "images": {"front": "myorg/front"}, "outputKey": "`+key+`"}`)
		refused(t, err, "the key "+key+" is used by other generators")
	}
}
