// Package grpc is a host that calls the plugin over gRPC, with the real go-plugin client. It reads the router's service by
// server reflection. The package only has tests.
package grpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
	"github.com/argoproj/argo-rollouts/utils/plugin/types"
)

const (
	service = "rollouts.plugin.v1.TrafficRouter"
	name    = "RpcTrafficRouterPlugin"
)

// host is a go-plugin client and the process it has started.
type host struct {
	*goplugin.Client
	process *exec.Cmd
	log     *lockedBuffer // what the client logs, and the plugin
	sockets string
	tables  string
}

// newHost prepares a process with a separate directory of RouteTables, without starting it.
func newHost(t *testing.T, protocol goplugin.Protocol, configure func(*goplugin.ClientConfig)) *host {
	t.Helper()
	binary := os.Getenv("PLUGIN_BINARY")
	if !filepath.IsAbs(binary) {
		t.Fatalf("PLUGIN_BINARY must be the absolute path of the plugin, it is %q", binary)
	}
	// The names of t.TempDir are too long for a socket.
	sockets, err := os.MkdirTemp("", "host")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{log: &lockedBuffer{}, sockets: sockets, tables: t.TempDir()}
	if err := os.CopyFS(h.tables, os.DirFS("../testdata/route-tables")); err != nil {
		t.Fatal(err)
	}
	// Set by env, because go-plugin appends the variables of this process, whose TMPDIR would win.
	h.process = exec.Command("env", "TMPDIR="+h.sockets, binary, "--protocol", string(protocol), "--route-tables-dir", h.tables)
	config := &goplugin.ClientConfig{
		HandshakeConfig: goplugin.HandshakeConfig{
			ProtocolVersion: 1, MagicCookieKey: "ARGO_ROLLOUTS_RPC_PLUGIN", MagicCookieValue: "trafficrouter",
		},
		Plugins:          map[string]goplugin.Plugin{name: &plugin{}},
		AllowedProtocols: []goplugin.Protocol{protocol},
		Cmd:              h.process,
		Logger:           hclog.New(&hclog.LoggerOptions{Output: h.log, Level: hclog.Debug}),
	}
	configure(config)
	h.Client = goplugin.NewClient(config)
	t.Cleanup(func() {
		h.Kill()
		if err := os.RemoveAll(sockets); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(h.log)
		}
	})
	return h
}

// router starts the plugin and dispenses its router.
func (h *host) router(t *testing.T) rpc.TrafficRouterPlugin {
	t.Helper()
	session, err := h.Client.Client()
	if err != nil {
		t.Fatal(err)
	}
	dispensed, err := session.Dispense(name)
	if err != nil {
		t.Fatal(err)
	}
	return dispensed.(rpc.TrafficRouterPlugin)
}

// plugin dispenses a router in either protocol: the controller's own client, or a client over gRPC.
type plugin struct{ rpc.RpcTrafficRouterPlugin }

func (*plugin) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error {
	return errors.New("this is the host")
}

func (*plugin) GRPCClient(ctx context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	methods, err := describe(ctx, conn)
	return &router{conn, methods}, err
}

// router calls the service with dynamic messages from its description.
type router struct {
	conn    *grpc.ClientConn
	methods protoreflect.MethodDescriptors
}

// describe reads the description of the router's service by server reflection.
func describe(ctx context.Context, conn *grpc.ClientConn) (protoreflect.MethodDescriptors, error) {
	stream, err := reflection.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&reflection.ServerReflectionRequest{
		MessageRequest: &reflection.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service},
	}); err != nil {
		return nil, err
	}
	response, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	files := &descriptorpb.FileDescriptorSet{}
	for _, text := range response.GetFileDescriptorResponse().GetFileDescriptorProto() {
		file := &descriptorpb.FileDescriptorProto{}
		if err := proto.Unmarshal(text, file); err != nil {
			return nil, err
		}
		files.File = append(files.File, file)
	}
	registry, err := protodesc.NewFiles(files)
	if err != nil {
		return nil, err
	}
	found, err := registry.FindDescriptorByName(service)
	if err != nil {
		return nil, err
	}
	return found.(protoreflect.ServiceDescriptor).Methods(), stream.CloseSend()
}

// call calls a method. Fields of the request and the reply are given by their JSON names, bytes as []byte.
func (r *router) call(method string, request map[string]any) (map[string]any, error) {
	descriptor := r.methods.ByName(protoreflect.Name(method))
	if descriptor == nil {
		return nil, fmt.Errorf("the service has no method %s", method)
	}
	text, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	in, out := dynamicpb.NewMessage(descriptor.Input()), dynamicpb.NewMessage(descriptor.Output())
	if err := protojson.Unmarshal(text, in); err != nil {
		return nil, err
	}
	if err := r.conn.Invoke(context.Background(), "/"+service+"/"+method, in, out); err != nil {
		return nil, err
	}
	if text, err = protojson.Marshal(out); err != nil {
		return nil, err
	}
	var reply map[string]any
	return reply, json.Unmarshal(text, &reply)
}

// perform calls a method with an empty reply.
func (r *router) perform(method string, request map[string]any) types.RpcError {
	_, err := r.call(method, request)
	return types.RpcError{ErrorString: message(err)}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return status.Convert(err).Message()
}

func (r *router) InitPlugin() types.RpcError { return r.perform("InitPlugin", map[string]any{}) }

func (r *router) Type() string {
	reply, err := r.call("Type", map[string]any{})
	if err != nil {
		return err.Error()
	}
	return reply["type"].(string)
}

func (r *router) UpdateHash(rollout *v1alpha1.Rollout, canary, stable string, additional []v1alpha1.WeightDestination) types.RpcError {
	return r.perform("UpdateHash", map[string]any{
		"rollout": object(rollout), "canaryHash": canary, "stableHash": stable, "additionalDestinations": additional,
	})
}

func (r *router) SetWeight(rollout *v1alpha1.Rollout, desired int32, additional []v1alpha1.WeightDestination) types.RpcError {
	return r.perform("SetWeight", map[string]any{
		"rollout": object(rollout), "desiredWeight": desired, "additionalDestinations": additional,
	})
}

func (r *router) VerifyWeight(rollout *v1alpha1.Rollout, desired int32, additional []v1alpha1.WeightDestination) (types.RpcVerified, types.RpcError) {
	reply, err := r.call("VerifyWeight", map[string]any{
		"rollout": object(rollout), "desiredWeight": desired, "additionalDestinations": additional,
	})
	verified := map[any]types.RpcVerified{
		"VERIFICATION_NOT_VERIFIED":    types.NotVerified,
		"VERIFICATION_VERIFIED":        types.Verified,
		"VERIFICATION_NOT_IMPLEMENTED": types.NotImplemented,
	}
	return verified[reply["verification"]], types.RpcError{ErrorString: message(err)}
}

func (r *router) SetHeaderRoute(rollout *v1alpha1.Rollout, route *v1alpha1.SetHeaderRoute) types.RpcError {
	return r.perform("SetHeaderRoute", map[string]any{"rollout": object(rollout), "setHeaderRoute": object(route)})
}

func (r *router) SetMirrorRoute(rollout *v1alpha1.Rollout, route *v1alpha1.SetMirrorRoute) types.RpcError {
	return r.perform("SetMirrorRoute", map[string]any{"rollout": object(rollout), "setMirrorRoute": object(route)})
}

func (r *router) RemoveManagedRoutes(rollout *v1alpha1.Rollout) types.RpcError {
	return r.perform("RemoveManagedRoutes", map[string]any{"rollout": object(rollout)})
}

// object returns a Kubernetes object, or a part of one, as JSON.
func object(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}

// lockedBuffer is a buffer for several goroutines of the client.
type lockedBuffer struct {
	mutex  sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(text []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.Write(text)
}

func (b *lockedBuffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.String()
}
