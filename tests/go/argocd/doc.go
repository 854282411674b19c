// Package host asks the ApplicationSet generator for parameters with Argo CD's own packages, and compares RouteTables with
// them as `deploy/argo-cd` says.
package host
