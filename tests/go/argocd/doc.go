// Package host requests parameters from the ApplicationSet generator with Argo CD's own packages, and compares RouteTables
// with them under the settings of `deploy/argo-cd`.
//
// A tool of the module is the API server of the cluster tests.
package host
