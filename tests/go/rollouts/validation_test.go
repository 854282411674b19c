package host

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/validation"
)

// The release whose types `validate` knows.
const shapesOf = "1.10.2"

// module returns the directory of the controller's module, whose name ends with the release.
func module() string {
	file, _ := runtime.FuncForPC(reflect.ValueOf(validation.ValidateRollout).Pointer()).FileLine(reflect.ValueOf(validation.ValidateRollout).Pointer())
	return filepath.Join(filepath.Dir(file), "../../../..")
}

func release() string {
	_, version, _ := strings.Cut(filepath.Base(module()), "@v")
	return version
}

// crd returns the schema of the spec of a Rollout in the release.
func crd(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(module(), "manifests/crds/rollout-crd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	version := parse(t, text)["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
	schema := version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
	return properties(schema)["spec"].(map[string]any)
}

func properties(schema map[string]any) map[string]any {
	properties, _ := schema["properties"].(map[string]any)
	return properties
}

// shape returns what `validate` keeps of a schema.
func shape(schema map[string]any) any {
	if schema["x-kubernetes-int-or-string"] == true {
		return "int32 or string"
	}
	switch kind := schema["type"]; kind {
	case nil:
		return "any"
	case "array":
		return []any{shape(schema["items"].(map[string]any))}
	case "integer":
		return schema["format"]
	case "object":
		if each, is := schema["additionalProperties"].(map[string]any); is {
			return map[string]any{"*": shape(each)}
		}
		if schema["properties"] == nil {
			return "object"
		}
		required, _ := schema["required"].([]any)
		keys := map[string]any{}
		for key, schema := range properties(schema) {
			if slices.Contains(required, any(key)) {
				key += "!"
			}
			keys[key] = shape(schema.(map[string]any))
		}
		return keys
	default:
		if schema["format"] == "date-time" {
			return "time"
		}
		return kind
	}
}

func TestTheShapeOfARolloutIsThatOfItsDefinition(t *testing.T) {
	if release() != shapesOf {
		t.Skip("validate knows the types of the newest release")
	}
	schema := crd(t)
	// Kubernetes owns the types of Pods.
	properties(schema)["template"] = map[string]any{}
	text, err := os.ReadFile(filepath.Join(environment.testdata, "../../../../crates/plugin-commands/src/validate/shapes/rollout.json"))
	if err != nil {
		t.Fatal(err)
	}
	var known any
	if err := json.Unmarshal(text, &known); err != nil {
		t.Fatal(err)
	}
	if expected := shape(schema); !reflect.DeepEqual(known, expected) {
		text, _ := json.Marshal(expected)
		t.Errorf("shapes/rollout.json must be %s", text)
	}
}

// mistyped returns specs in which one value has another type than the schema says.
func mistyped(schema map[string]any, at string, wrap func(any) any, found map[string]any) {
	var other any
	switch schema["type"] {
	case "array":
		mistyped(schema["items"].(map[string]any), at+".0", func(value any) any { return wrap([]any{value}) }, found)
		other = "text"
	case "object":
		for key, each := range properties(schema) {
			inner := func(value any) any { return wrap(map[string]any{key: value}) }
			mistyped(each.(map[string]any), at+"."+key, inner, found)
		}
		other = "text"
	case "integer", "boolean":
		other = "text"
	case "string":
		other = 1
	default:
		other = []any{}
		if schema["x-kubernetes-int-or-string"] != true {
			return
		}
	}
	found[at] = wrap(other)
}

// merge sets the values of a patch; null removes.
func merge(value, patch any) any {
	fields, is := patch.(map[string]any)
	if !is {
		return patch
	}
	merged := map[string]any{}
	if old, is := value.(map[string]any); is {
		maps.Copy(merged, old)
	}
	for key, each := range fields {
		merged[key] = merge(merged[key], each)
	}
	return merged
}

// refusal returns why the API server's types or the controller refuse a Rollout; empty if they accept it.
func refusal(rollout map[string]any) string {
	var typed v1alpha1.Rollout
	if err := kuberuntime.DefaultUnstructuredConverter.FromUnstructured(rollout, &typed); err != nil {
		return err.Error()
	}
	if errs := validation.ValidateRollout(&typed); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	return ""
}

// What the controller refuses must be an error of `validate`, and what it accepts none.
func TestValidateRefusesWhatTheControllerRefuses(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(environment.testdata, "validation.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	corpus := parse(t, text)
	specs := map[string]any{}
	if release() == shapesOf {
		mistyped(crd(t), "type", func(value any) any { return value }, specs)
		maps.DeleteFunc(specs, func(at string, _ any) bool {
			// Kubernetes owns Pods, and validate ignores a Rollout without a plugin block.
			const block = "type.strategy.canary.trafficRouting.plugins"
			return strings.HasPrefix(at, "type.template") || strings.HasPrefix(block, at)
		})
	}
	for name, patch := range corpus["spec"].(map[string]any) {
		specs[name] = patch
	}
	for name, patch := range corpus["canary"].(map[string]any) {
		specs[name] = map[string]any{"strategy": map[string]any{"canary": patch}}
	}
	for name, step := range corpus["steps"].(map[string]any) {
		canary := map[string]any{"steps": []any{step}}
		specs[name] = map[string]any{"strategy": map[string]any{"canary": canary}}
	}

	directory := t.TempDir()
	expected := map[string]string{}
	names := slices.Sorted(maps.Keys(specs))
	for index, name := range names {
		rollout := merge(corpus["base"], map[string]any{"spec": specs[name]}).(map[string]any)
		expected[name] = refusal(rollout)
		// Without a table, and with Services of its own, there are no other errors.
		text, err := yaml.Marshal(merge(rollout, map[string]any{"metadata": map[string]any{"namespace": fmt.Sprintf("n%d", index)}}))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(directory, name+".yaml"), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	validate := exec.Command(environment.binary, "validate", "-f", directory, "--controller-release", release(), "-o", "json")
	output, err := validate.Output()
	var report struct {
		Rollouts int
		Problems []struct{ File, Severity, Message string }
	}
	if failed := json.Unmarshal(output, &report); failed != nil {
		t.Fatalf("%v, %v: %s", err, failed, output)
	}
	if report.Rollouts != len(names) {
		t.Errorf("validate found %d of %d Rollouts", report.Rollouts, len(names))
	}
	found := map[string][]string{}
	for _, problem := range report.Problems {
		if problem.Severity == "error" {
			name := strings.TrimSuffix(filepath.Base(problem.File), ".yaml")
			found[name] = append(found[name], problem.Message)
		}
	}
	// Where the two differ, with the reason.
	differences := corpus["differences"].(map[string]any)
	refused := 0
	for _, name := range names {
		controller, ours := expected[name], found[name]
		if controller != "" {
			refused++
		}
		differs := (controller == "") != (len(ours) == 0)
		if _, known := differences[name]; differs != known && (known && release() == shapesOf || differs) {
			t.Errorf("%s: the controller says %q, validate says %q", name, controller, ours)
		}
	}
	t.Logf("%d specs, of which the controller refuses %d", len(names), refused)
}
