// Package host asks the ApplicationSet generator for parameters with Argo CD's own packages.
package host
