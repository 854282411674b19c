// Package controller pins the newest controller release the cluster tests run: mirror steps and
// ping-pong with plugins are valid from 1.10 on. Nothing is in it but the module's tool list.
package controller
