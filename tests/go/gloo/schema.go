package main

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// schema has the types of a message, and the rules in its comments, as the API server knows them.
type schema struct {
	Type        string             `json:"type,omitempty"`
	Enum        []string           `json:"enum,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Values      *schema            `json:"additionalProperties,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	IntOrString bool               `json:"x-kubernetes-int-or-string,omitempty"`
	Required    []string           `json:"required,omitempty"`
	Limits      map[string]float64 `json:"limits,omitempty"`
	Rules       []rule             `json:"x-kubernetes-validations,omitempty"`
}

type rule struct {
	Rule    string `json:"rule"`
	Message string `json:"message"`
	program cel.Program
}

var (
	marker      = regexp.MustCompile(`(?m)^\s*\+kubebuilder:validation:(\w+)(?:[:=](.*))?$`)
	xValidation = regexp.MustCompile(`^rule="([^"]*)",message="([^"]*)"$`)
	// It has no functions of Kubernetes, which no rule uses.
	environment, _ = cel.NewEnv(cel.Variable("self", cel.DynType))
	scalars        = map[protoreflect.Kind]schema{
		protoreflect.StringKind: {Type: "string"},
		protoreflect.BoolKind:   {Type: "boolean"},
		protoreflect.DoubleKind: {Type: "number"},
		protoreflect.Int32Kind:  {Type: "integer"},
		protoreflect.Uint32Kind: {Type: "integer"},
		protoreflect.Int64Kind:  {IntOrString: true},
		protoreflect.EnumKind:   {Type: "string"},
	}
)

// define returns the schema of a message.
func define(message protoreflect.MessageDescriptor) (*schema, error) {
	object := &schema{Type: "object", Properties: map[string]*schema{}}
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		value, err := defineValue(field)
		if field.IsMap() {
			value, err = defineValue(field.MapValue())
			value = &schema{Type: "object", Values: value}
		} else if field.IsList() {
			value = &schema{Type: "array", Items: value}
		}
		if err != nil {
			return nil, err
		}
		isRequired, err := value.addRules(field)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field.FullName(), err)
		}
		object.Properties[field.JSONName()] = value
		if isRequired {
			object.Required = append(object.Required, field.JSONName())
		}
	}
	_, err := object.addRules(message)
	return object, err
}

func defineValue(field protoreflect.FieldDescriptor) (*schema, error) {
	if inner := field.Message(); inner != nil {
		if inner.ParentFile().Path() == "google/protobuf/wrappers.proto" {
			return defineValue(inner.Fields().ByNumber(1))
		}
		return define(inner)
	}
	value, ok := scalars[field.Kind()]
	if !ok {
		return nil, fmt.Errorf("%s has the unknown type %s", field.FullName(), field.Kind())
	}
	if field.Kind() == protoreflect.Uint32Kind {
		value.Limits = map[string]float64{"minimum": 0}
	}
	for i := 0; field.Enum() != nil && i < field.Enum().Values().Len(); i++ {
		value.Enum = append(value.Enum, string(field.Enum().Values().Get(i).Name()))
	}
	return &value, nil
}

// addRules adds the rules in the comment of a field or message. It returns whether a field is required.
func (s *schema) addRules(of protoreflect.Descriptor) (isRequired bool, err error) {
	if s.Limits == nil {
		s.Limits = map[string]float64{}
	}
	comment := of.ParentFile().SourceLocations().ByDescriptor(of).LeadingComments
	for _, found := range marker.FindAllStringSubmatch(comment, -1) {
		var limit float64
		switch name, text := found[1], found[2]; name {
		case "Required":
			isRequired = true
		case "XValidation":
			err = s.addXValidation(text)
		case "Minimum", "Maximum", "MinItems", "MaxItems", "MaxLength":
			err = json.Unmarshal([]byte(text), &limit)
			s.Limits[strings.ToLower(name[:1])+name[1:]] = limit
		default:
			err = fmt.Errorf("unknown rule %s", found[0])
		}
		if err != nil {
			return
		}
	}
	return
}

func (s *schema) addXValidation(text string) error {
	parts := xValidation.FindStringSubmatch(text)
	if parts == nil {
		return fmt.Errorf("not a rule: %s", text)
	}
	ast, issues := environment.Compile(parts[1])
	if issues.Err() != nil {
		return issues.Err()
	}
	program, err := environment.Program(ast)
	s.Rules = append(s.Rules, rule{parts[1], parts[2], program})
	return err
}

// check returns the rules that a value breaks. A field that is null counts as absent, as for the API server.
func (s *schema) check(at string, value any) (broken []string) {
	say := func(format string, args ...any) { broken = append(broken, at+": "+fmt.Sprintf(format, args...)) }
	within := func(what string, found float64) {
		least, hasLeast := s.Limits["min"+what]
		most, hasMost := s.Limits["max"+what]
		if hasLeast && found < least || hasMost && found > most {
			say("%v is out of range", found)
		}
	}
	kind := "null"
	switch v := value.(type) {
	case map[string]any:
		kind = "object"
		for key, inner := range v {
			child := s.Values
			if child == nil {
				child = s.Properties[key]
			}
			if child == nil {
				say("unknown field %s", key)
			} else if inner == nil {
				delete(v, key)
			} else {
				broken = append(broken, child.check(at+"."+key, inner)...)
			}
		}
		for _, key := range s.Required {
			if v[key] == nil {
				say("%s is required", key)
			}
		}
	case []any:
		kind = "array"
		within("Items", float64(len(v)))
		for i, item := range v {
			if s.Items != nil {
				broken = append(broken, s.Items.check(fmt.Sprintf("%s[%d]", at, i), item)...)
			}
		}
	case float64:
		kind = "number"
		if s.Type != "number" && v == math.Trunc(v) {
			kind = "integer"
		}
		within("imum", v)
	case string:
		kind = "string"
		within("Length", float64(len([]rune(v))))
		if s.Enum != nil && !slices.Contains(s.Enum, v) {
			say("unknown value %s", v)
		}
	case bool:
		kind = "boolean"
	}
	if s.Type != kind && !(s.IntOrString && (kind == "integer" || kind == "string")) {
		say("must be %s, is %s", s.Type, kind)
		return
	}
	for _, rule := range s.Rules {
		result, _, err := rule.program.Eval(map[string]any{"self": value})
		if err != nil || result.Value() != true {
			say("%s", rule.Message)
		}
	}
	return
}
