package host

// The annotation by which the generator makes Argo CD refresh an ApplicationSet before its requeue time.

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/argoproj/argo-cd/v3/common"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
)

// kubeconfigOf writes a kubeconfig for an API server without authentication.
func kubeconfigOf(t testing.TB, server string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, file, jsonOf(t, map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "any",
		"contexts": []any{map[string]any{"name": "any", "context": map[string]any{"cluster": "any", "user": "any"}}},
		"clusters": []any{map[string]any{"name": "any", "cluster": map[string]any{"server": server}}},
		"users":    []any{map[string]any{"name": "any", "user": map[string]any{}}},
	}))
	return file
}

// annotates is the handler of an API server that only patches the annotations of the set in Argo CD's cluster in memory.
func (a *argoCD) annotates(writer http.ResponseWriter, request *http.Request) {
	const path = "/apis/argoproj.io/v1alpha1/namespaces/argocd/applicationsets/shop"
	body, err := io.ReadAll(request.Body)
	if err != nil || request.Method != http.MethodPatch || request.URL.Path != path ||
		request.Header.Get("Content-Type") != "application/merge-patch+json" {
		http.Error(writer, "not a patch of the set", http.StatusBadRequest)
		return
	}
	set := &v1alpha1.ApplicationSet{}
	set.Name, set.Namespace = "shop", namespace
	if err := a.Patch(request.Context(), set, client.RawPatch("application/merge-patch+json", body)); err != nil {
		http.Error(writer, err.Error(), http.StatusInternalServerError)
		return
	}
	writer.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(writer).Encode(map[string]any{
		"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
		"metadata": map[string]any{"name": "shop", "namespace": namespace},
	})
}

// isToRefresh returns whether the controller refreshes the set after an event.
func (a *argoCD) isToRefresh(t testing.TB) bool {
	t.Helper()
	var set v1alpha1.ApplicationSet
	if err := a.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "shop"}, &set); err != nil {
		t.Fatal(err)
	}
	if set.RefreshRequired() != (set.Annotations[common.AnnotationApplicationSetRefresh] != "") {
		t.Error("the annotation has no value")
	}
	return set.RefreshRequired()
}

// A set is annotated when its answer has changed, and the next pass takes the annotation away.
func refreshedSet(t *testing.T) {
	var argo atomic.Pointer[argoCD]
	server := serve(t, func(writer http.ResponseWriter, request *http.Request) { argo.Load().annotates(writer, request) })
	refresh := fmt.Sprintf("\nrefresh: {namespaces: [argocd], interval: 1s, kubeconfig: %s}\n", kubeconfigOf(t, server))
	g := start(t, hello+refresh)
	a := newArgoCD(t, g.api, applicationSet(t, goTemplate, ours(`{source: hello}`), "{{.key1}}", ""))
	argo.Store(a)
	a.passes(t, "val1", "val2")
	if a.isToRefresh(t) {
		t.Error("nothing has changed, and the set is annotated")
	}

	g.configure(t, "static:\n  hello: {sets: [{key1: val3}]}\n"+refresh)
	eventually(t, "the set is annotated", func() bool { return a.isToRefresh(t) })
	a.passes(t, "val3")
	a.isHealthy(t)
	if a.isToRefresh(t) {
		t.Error("after a pass the set is still annotated")
	}

	// An answer that has become an error would be no reason.
	g.configure(t, "static:\n  hello: {sets: []}\n"+refresh)
	g.configure(t, "static:\n  hello: {sets: [{key1: val4}]}\n"+refresh)
	eventually(t, "the set is annotated again", func() bool { return a.isToRefresh(t) })
	a.passes(t, "val4")
}
