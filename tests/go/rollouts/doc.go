// Package host plays the part of the Rollouts controller: it starts the plugin binary through the
// controller's own configuration, downloader and client packages, at their released version, and
// calls every method. All of it is in the tests.
//
// The module's tool list also names the programs that the cluster tests start.
package host
