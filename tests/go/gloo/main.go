// Command gloo judges RouteTables and MirrorPolicies by the protos of Gloo's vendor. Its argument is the directory of this module.
//
// The first line on stdout has the definitions that follow from the protos, by kind. Then each line on stdin is an object, and
// each further line on stdout is the judgement.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
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

const (
	apis    = "github.com/solo-io/solo-apis"
	folder  = apis + "/api/gloo.solo.io/"
	maximum = 16 << 20
)

// files are the protos that declare the kinds.
var files = map[string]string{
	"RouteTable":   folder + "networking/v2/route_table.proto",
	"MirrorPolicy": folder + "policy/v2/trafficcontrol/mirror_policy.proto",
}

// kind is a kind of object.
type kind struct {
	parts       map[string]protoreflect.MessageDescriptor
	definitions map[string]*schema
}

// object is an object as the API server stores it.
type object struct {
	Kind     string                                          `json:"kind"`
	Metadata struct{ Labels, Annotations map[string]string } `json:"metadata"`
	Spec     json.RawMessage                                 `json:"spec"`
	Status   json.RawMessage                                 `json:"status"`
}

// judgement is the answer to an object.
type judgement struct {
	// Refused has the reasons of the decoder, and the rules of the definition that the object breaks.
	Refused []string `json:"refused,omitempty"`
	// What was read: fields that have their default are absent.
	Spec        json.RawMessage   `json:"spec,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func main() {
	kinds, err := load(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	definitions := map[string]map[string]*schema{}
	for name, kind := range kinds {
		definitions[name] = kind.definitions
	}
	_ = out.Encode(definitions)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, maximum)
	for lines.Scan() {
		_ = out.Encode(judge(kinds, lines.Bytes()))
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}

// load compiles the protos of the module's copy in the module cache.
func load(module string) (map[string]kind, error) {
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", apis)
	list.Dir, list.Stderr = module, os.Stderr
	dir, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	open := func(path string) (io.ReadCloser, error) {
		inside, ok := strings.CutPrefix(path, apis)
		if !ok {
			return nil, os.ErrNotExist
		}
		return os.Open(filepath.Join(strings.TrimSpace(string(dir)), inside))
	}
	registered := func(path string) (protocompile.SearchResult, error) {
		file, err := protoregistry.GlobalFiles.FindFileByPath(path)
		return protocompile.SearchResult{Desc: file}, err
	}
	compiler := protocompile.Compiler{
		Resolver: protocompile.CompositeResolver{
			&protocompile.SourceResolver{Accessor: open},
			protocompile.ResolverFunc(registered),
		},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	kinds := map[string]kind{}
	for name, path := range files {
		compiled, err := compiler.Compile(context.Background(), path)
		if err != nil {
			return nil, err
		}
		kind := kind{map[string]protoreflect.MessageDescriptor{}, map[string]*schema{}}
		for _, part := range []string{"Spec", "Status"} {
			message := compiled[0].Messages().ByName(protoreflect.Name(name + part))
			key := strings.ToLower(part)
			kind.parts[key] = message
			if kind.definitions[key], err = define(message); err != nil {
				return nil, err
			}
		}
		kinds[name] = kind
	}
	return kinds, nil
}

func judge(kinds map[string]kind, line []byte) (answer judgement) {
	var object object
	if err := json.Unmarshal(line, &object); err != nil {
		answer.Refused = []string{err.Error()}
		return
	}
	kind, ok := kinds[object.Kind]
	if !ok {
		answer.Refused = []string{"unknown kind " + object.Kind}
		return
	}
	answer.Labels, answer.Annotations = object.Metadata.Labels, object.Metadata.Annotations
	for part, text := range map[string]json.RawMessage{"spec": object.Spec, "status": object.Status} {
		if len(text) == 0 {
			continue
		}
		message := dynamicpb.NewMessage(kind.parts[part])
		// The decoder of the vendor's types, without its tolerance of unknown fields.
		if err := jsonpb.Unmarshal(bytes.NewReader(text), message); err != nil {
			answer.Refused = append(answer.Refused, part+": "+err.Error())
		} else if part == "spec" {
			answer.Spec, _ = protojson.Marshal(message)
		}
		var value any
		if err := json.Unmarshal(text, &value); err != nil {
			answer.Refused = append(answer.Refused, err.Error())
			continue
		}
		answer.Refused = append(answer.Refused, kind.definitions[part].check(part, value)...)
	}
	return
}
