// Package host requests parameters from the ApplicationSet generator with Argo CD's own packages, and compares RouteTables
// with them under the settings of `deploy/argo-cd`.
package host
