// Package host plays the Rollouts controller: it starts the plugin by the controller's released configuration, downloader and
// client packages, and calls every method. The package only has tests.
//
// The tools of the module include the programs that the cluster tests start.
package host
