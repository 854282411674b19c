// Command gloo judges RouteTables and MirrorPolicies by the protos of Gloo's vendor. Its argument is the directory of this module.
//
// The first line on stdout has the schemas that follow from the protos. Then each line on stdin is an object, and each further line
// on stdout is the judgement.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/golang/protobuf/jsonpb"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	// Registered, because the protos import theirs.
	_ "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	_ "github.com/solo-io/skv2/pkg/api/core.skv2.solo.io/v1"

	// The Go packages of the two APIs need a Kubernetes client, which takes minutes to compile. This one keeps the module.
	_ "github.com/solo-io/solo-apis/client-go/envoy-gloo/api/envoy/type/streaming"
)

const apis = "github.com/solo-io/solo-apis"

// files are the protos that declare the kinds.
var files = map[string]string{
	"RouteTable":   apis + "/api/gloo.solo.io/networking/v2/route_table.proto",
	"MirrorPolicy": apis + "/api/gloo.solo.io/policy/v2/trafficcontrol/mirror_policy.proto",
}

type object struct {
	Kind         string
	Metadata     struct{ Labels, Annotations map[string]string }
	Spec, Status json.RawMessage
}

// judgement is the answer to an object.
type judgement struct {
	// Refused has the reasons of the decoder, and the rules that the object breaks.
	Refused []string `json:"refused,omitempty"`
	// Read has the metadata and the spec, without fields that have their default.
	Read map[string]any `json:"read"`
}

func main() {
	messages, err := compile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	schemas := map[string]*schema{}
	for name, message := range messages {
		if schemas[name], err = define(message); err != nil {
			log.Fatal(err)
		}
	}
	out := json.NewEncoder(os.Stdout)
	_ = out.Encode(schemas)
	for in := json.NewDecoder(os.Stdin); ; {
		var object object
		if err := in.Decode(&object); err == io.EOF {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		_ = out.Encode(judge(messages, schemas, object))
	}
}

// compile reads the protos in the module cache. The keys are the names of messages, such as RouteTableSpec.
func compile(module string) (map[string]protoreflect.MessageDescriptor, error) {
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", apis)
	list.Dir, list.Stderr = module, os.Stderr
	dir, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	open := func(path string) (io.ReadCloser, error) {
		return os.Open(strings.Replace(path, apis, strings.TrimSpace(string(dir)), 1))
	}
	registered := func(path string) (protocompile.SearchResult, error) {
		file, err := protoregistry.GlobalFiles.FindFileByPath(path)
		return protocompile.SearchResult{Desc: file}, err
	}
	sources := &protocompile.SourceResolver{Accessor: open}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.CompositeResolver{sources, protocompile.ResolverFunc(registered)},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	messages := map[string]protoreflect.MessageDescriptor{}
	for kind, path := range files {
		compiled, err := compiler.Compile(context.Background(), path)
		if err != nil {
			return nil, err
		}
		for _, name := range []string{kind + "Spec", kind + "Status"} {
			messages[name] = compiled[0].Messages().ByName(protoreflect.Name(name))
		}
	}
	return messages, nil
}

func judge(messages map[string]protoreflect.MessageDescriptor, schemas map[string]*schema, object object) judgement {
	answer := judgement{Read: map[string]any{"metadata": object.Metadata}}
	for part, text := range map[string]json.RawMessage{"Spec": object.Spec, "Status": object.Status} {
		if len(text) == 0 {
			continue
		}
		// The decoder of the vendor's types, without its tolerance of unknown fields.
		read := dynamicpb.NewMessage(messages[object.Kind+part])
		if err := jsonpb.Unmarshal(bytes.NewReader(text), read); err != nil {
			answer.Refused = append(answer.Refused, err.Error())
		} else if part == "Spec" {
			read, _ := protojson.Marshal(read)
			answer.Read["spec"] = json.RawMessage(read)
		}
		var value any
		_ = json.Unmarshal(text, &value)
		broken := schemas[object.Kind+part].check(strings.ToLower(part), value)
		answer.Refused = append(answer.Refused, broken...)
	}
	return answer
}
