package host

// Objects of a cluster for the generator's sources.

import (
	"path/filepath"
	"strings"
	"testing"
)

const (
	// glooRoutes enables the source gloo-routes.
	glooRoutes = `
glooRoutes: {namespaces: [shop]}
`
	// everyObject enables all sources that read objects.
	everyObject = glooRoutes + `
rollouts: {namespaces: [shop]}
glooWorkspaces: {}
`
)

// shopRoutes is a generator for the routes of tables with a label.
var shopRoutes = ours(`{source: gloo-routes, routeTableSelector: {labels: {app: shop}}}`)

// objects returns the flag to read these YAML documents instead of the objects of a cluster.
func objects(t testing.TB, documents ...string) string {
	t.Helper()
	directory := t.TempDir()
	write(t, filepath.Join(directory, "objects.yaml"), strings.Join(documents, "\n---\n"))
	return "--objects-dir=" + directory
}

// tables returns the flag to read one RouteTable with these routes.
func tables(t testing.TB, routes string) string {
	t.Helper()
	return objects(t, table(routes))
}

// table returns a RouteTable with these routes.
func table(routes string) string {
	return `
apiVersion: networking.gloo.solo.io/v2
kind: RouteTable
metadata: {name: web, namespace: shop, labels: {app: shop}}
spec:
  hosts: [shop.example.com]
  http:` + routes
}

// atRest is a route without a canary.
const atRest = `
  - name: reviews
    matchers: [{uri: {prefix: /reviews}}]
    forwardTo: {destinations: [{ref: {name: reviews-stable}, port: {number: 8080}}]}
`

// rollout returns a Rollout that uses the plugin. Its second step sets weight 50.
func rollout(name, status string) string {
	return `
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: ` + name + `, namespace: shop, generation: 7, labels: {app: shop}}
spec:
  strategy:
    canary:
      stableService: ` + name + `-stable
      canaryService: ` + name + `-canary
      steps: [{setWeight: 10}, {setWeight: 50}]
      trafficRouting:
        plugins:
          solo-io/glooplatform: {routeTableSelector: {labels: {app: shop}}}
status: ` + status
}

// The status of a Rollout during an update from version a to b.
const (
	restsAtA   = `{observedGeneration: "7", phase: Healthy, stableRS: a, currentPodHash: a}`
	leavesA    = `{observedGeneration: "6", phase: Progressing, stableRS: a, currentPodHash: b, currentStepIndex: 0}`
	pausesAt10 = `{observedGeneration: "7", phase: Paused, stableRS: a, currentPodHash: b, currentStepIndex: 1, canary: {weights: {stable: {weight: 90}, canary: {weight: 10}}}}`
	givesUp    = `{observedGeneration: "7", phase: Degraded, abort: true, stableRS: a, currentPodHash: b, canary: {weights: {stable: {weight: 100}, canary: {weight: 0}}}}`
	restsAtB   = `{observedGeneration: "7", phase: Healthy, stableRS: b, currentPodHash: b, currentStepIndex: 2, canary: {weights: {stable: {weight: 100}, canary: {weight: 0}}}}`
)

// workspaces has two Workspaces: web has namespaces in the cluster c1, ops in all clusters.
const workspaces = `
apiVersion: admin.gloo.solo.io/v2
kind: Workspace
metadata: {name: web, namespace: gloo-mesh}
spec: {workloadClusters: [{name: c1, namespaces: [{name: shop}, {name: "team-*"}]}]}
---
apiVersion: admin.gloo.solo.io/v2
kind: Workspace
metadata: {name: ops, namespace: gloo-mesh}
spec: {workloadClusters: [{name: "*", namespaces: [{name: ops}]}]}
---
apiVersion: admin.gloo.solo.io/v2
kind: KubernetesCluster
metadata: {name: c1, namespace: gloo-mesh, labels: {region: us}}
spec: {}
---
apiVersion: admin.gloo.solo.io/v2
kind: KubernetesCluster
metadata: {name: c2, namespace: gloo-mesh, labels: {region: eu}}
spec: {}
`
