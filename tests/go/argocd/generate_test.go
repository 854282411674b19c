package host

// What becomes of parameters (level 2): Argo CD's generators and templates, without a cluster.

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Every error of the set-up is told, and keeps all Applications.
func setUpErrors(t *testing.T) {
	const nowhere = "http://127.0.0.1:1"
	configMapIs := func(data map[string]string) func(*argoCD) error {
		return func(a *argoCD) error {
			return a.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: named(configMap), Data: data})
		}
	}
	const secretKey = "$" + configMap + ":token"
	for _, c := range []struct {
		damage  func(*argoCD) error
		message string
	}{
		{
			func(a *argoCD) error { return a.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: named(configMap)}) },
			`error getting plugin from generator: error fetching ConfigMap: configmaps "gloo-appset-generator" not found`,
		},
		{
			configMapIs(map[string]string{"token": secretKey}),
			"error getting plugin from generator: error fetching ConfigMap: baseUrl not found in ConfigMap",
		},
		{
			configMapIs(map[string]string{"baseUrl": nowhere}),
			"error getting plugin from generator: error fetching ConfigMap: token not found in ConfigMap",
		},
		{
			configMapIs(map[string]string{"baseUrl": nowhere, "token": "plain-text"}),
			"error getting plugin from generator: error fetching Secret token: " +
				"token is empty, or does not reference a secret key starting with '$': plain-text",
		},
		{
			func(a *argoCD) error { return a.Delete(t.Context(), &corev1.Secret{ObjectMeta: named(configMap)}) },
			`error getting plugin from generator: error fetching Secret token: ` +
				`error fetching secret argocd/gloo-appset-generator: secrets "gloo-appset-generator" not found`,
		},
		{
			configMapIs(map[string]string{"baseUrl": nowhere, "token": secretKey, "requestTimeout": "30s"}),
			`error getting plugin from generator: error set requestTimeout : strconv.Atoi: parsing "30s": invalid syntax`,
		},
		{
			configMapIs(map[string]string{"baseUrl": "gloo-appset-generator.argocd.svc", "token": secretKey}),
			`error listing params: error get api 'shop': ` +
				`Post "gloo-appset-generator.argocd.svc/api/v1/getparams.execute": unsupported protocol scheme ""`,
		},
		{
			configMapIs(map[string]string{"baseUrl": nowhere + "\n", "token": secretKey}),
			`error listing params: NewRequest returned unexpected error: ` +
				`parse "http://127.0.0.1:1\n/api/v1/getparams.execute": net/url: invalid control character in URL`,
		},
		{
			func(*argoCD) error { return nil },
			`error listing params: error get api 'shop': ` +
				`Post "http://127.0.0.1:1/api/v1/getparams.execute": dial tcp 127.0.0.1:1: connect: connection refused`,
		},
	} {
		a := newArgoCD(t, nowhere)
		if err := c.damage(a); err != nil {
			t.Fatal(err)
		}
		set := applicationSet(t, goTemplate, ours(`{source: hello}`), "{{.key1}}", "")
		a.refuses(t, set)
		if _, _, err := a.generated(t, set); err == nil || err.Error() != c.message {
			t.Errorf("said %q, want %q", err, c.message)
		}
	}
}

// Argo CD then sends the reference itself.
func missingSecretKey(t *testing.T) {
	g := start(t, hello)
	a := newArgoCD(t, g.api)
	if err := a.Update(t.Context(), &corev1.Secret{ObjectMeta: named(configMap)}); err != nil {
		t.Fatal(err)
	}
	set := applicationSet(t, goTemplate, ours(`{source: hello}`), "{{.key1}}", "")
	a.refuses(t, set, "error listing params: error get api 'shop': API error with status code 403: ")

	// Whoever sets such a token would let everyone in whose Secret lacks the key.
	if err := a.Update(t.Context(), &corev1.Secret{ObjectMeta: named(configMap), Data: map[string][]byte{"token": []byte(" \n")}}); err != nil {
		t.Fatal(err)
	}
	a.refuses(t, set, "API error with status code 401: ")
}

// front is input of image-digests.
const front = `{"source": "image-digests", "tag": "feature-1", "images": {"front": "myorg/front"}}`

const both = `{source: image-digests, tag: "%s", images: {front: myorg/front, back: myorg/back}}`

const clusters = `
static:
  clusters:
    sets:
    - {key: c1/web, gloo: {cluster: c1, slug: c1-web}}
    - {key: c2/web, gloo: {cluster: c2, slug: c2-web}}
`

func valuesAndSelector(t *testing.T) {
	a := newArgoCD(t, start(t, clusters).api)
	a.renders(t, applicationSet(t, goTemplate, ours(`{source: clusters}`, `values: {label: "probe-{{.gloo.slug}}"}`),
		"{{.gloo.slug}}", "{{.values.label}}"), "c1-web: probe-c1-web", "c2-web: probe-c2-web")
	a.renders(t, applicationSet(t, fastTemplate, ours(`{source: clusters}`, `values: {label: "probe-{{gloo.slug}}"}`),
		"{{gloo.slug}}", "{{values.label}}"), "c1-web: probe-c1-web", "c2-web: probe-c2-web")
	for templates, name := range map[string]string{goTemplate: "{{.gloo.slug}}", fastTemplate: "{{gloo.slug}}"} {
		a.renders(t, applicationSet(t, templates, ours(`{source: clusters}`)+"\n    selector: {matchLabels: {gloo.cluster: c2}}", name, ""), "c2-web: ")
	}
}

// Templates cannot read `.generator.input.parameters`, whatever Argo CD's documents say. We echo the input instead.
func generatorInput(t *testing.T) {
	a := newArgoCD(t, start(t, hello).api)
	const parameters = `{source: hello, key1: "given", map: {key1: nested}}`
	// Bytes, as numbers.
	a.renders(t, applicationSet(t, goTemplate, ours(parameters), "{{.key1}}", "{{.generator.input.parameters.key1}}"),
		"val1: {[34 103 105 118 101 110 34]}", "val2: {[34 103 105 118 101 110 34]}")
	a.renders(t, applicationSet(t, goTemplate, ours(parameters), "{{.key1}}", "{{.generator.input.parameters.key1 | toJson | fromJson}}"),
		"val1: given", "val2: given")
	_, reason, err := a.generated(t, applicationSet(t, goTemplate, ours(parameters), "{{.key1}}", `{{index .generator.input.parameters.map "key1"}}`))
	refused(t, err, "can't index item of type v1.JSON")
	if reason != "RenderTemplateParamsError" {
		t.Errorf("the reason is %q", reason)
	}
	a.renders(t, applicationSet(t, fastTemplate, ours(parameters), "{{key1}}", "{{generator.input.parameters.key1}}"),
		"val1: {{generator.input.parameters.key1}}", "val2: {{generator.input.parameters.key1}}")

	a.renders(t, applicationSet(t, goTemplate, ours(parameters), "{{.key1}}", "{{.input.key1}} {{.input.map.key1}}"),
		"val1: given nested", "val2: given nested")
	a.renders(t, applicationSet(t, fastTemplate, ours(parameters), "{{key1}}", "{{input.key1}} {{input.map.key1}}"),
		"val1: given nested", "val2: given nested")
}

const secondChild = "failed to get params for second generator in the matrix generator: " +
	"child generator returned an error on parameter generation: error listing params: error get api 'shop': API error with status code "

// Where both children have a key, what is empty or false wins like anything else.
func emptyOverrides(t *testing.T) {
	a := newArgoCD(t, start(t, `
static:
  flags:
    sets: [{app: front, enabled: false, note: ""}]
`).api)
	base := `list: {elements: [{app: front, enabled: true, note: base}]}`
	a.renders(t, applicationSet(t, goTemplate, merge("app", base, ours(`{source: flags}`)), "{{.app}}", "{{.enabled}} {{.note}}"), "front: false ")
	a.renders(t, applicationSet(t, goTemplate, matrix(base, ours(`{source: flags}`)), "{{.app}}", "{{.enabled}} {{.note}}"), "front: true base")
	empty := `list: {elements: [{app: front, enabled: "", note: ""}]}`
	a.renders(t, applicationSet(t, goTemplate, matrix(empty, ours(`{source: flags}`)), "{{.app}}", "{{.enabled}} {{.note}}"), "front:  ")
}
