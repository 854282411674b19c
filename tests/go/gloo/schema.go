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

// schema is a structural schema of a definition: the types of a message, and the rules in its comments.
type schema struct {
	Type        string             `json:"type,omitempty"`
	Enum        []string           `json:"enum,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Values      *schema            `json:"additionalProperties,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	IntOrString bool               `json:"x-kubernetes-int-or-string,omitempty"`
	Required    []string           `json:"required,omitempty"`
	Minimum     *float64           `json:"minimum,omitempty"`
	Maximum     *float64           `json:"maximum,omitempty"`
	MinItems    *int               `json:"minItems,omitempty"`
	MaxItems    *int               `json:"maxItems,omitempty"`
	MaxLength   *int               `json:"maxLength,omitempty"`
	Rules       []rule             `json:"x-kubernetes-validations,omitempty"`
}

// rule is an XValidation.
type rule struct {
	Rule    string `json:"rule"`
	Message string `json:"message"`
	program cel.Program
}

var (
	marker      = regexp.MustCompile(`(?m)^\s*\+kubebuilder:validation:(\w+)(?:[:=](.*))?$`)
	xValidation = regexp.MustCompile(`^rule="([^"]*)",message="([^"]*)"$`)
)

// define returns the schema of a message.
func define(message protoreflect.MessageDescriptor) (*schema, error) {
	object := &schema{Type: "object", Properties: map[string]*schema{}}
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		value, err := defineField(field)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field.FullName(), err)
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
	slices.Sort(object.Required)
	_, err := object.addRules(message)
	return object, err
}

func defineField(field protoreflect.FieldDescriptor) (*schema, error) {
	switch {
	case field.IsMap():
		values, err := defineValue(field.MapValue())
		return &schema{Type: "object", Values: values}, err
	case field.IsList():
		items, err := defineValue(field)
		return &schema{Type: "array", Items: items}, err
	default:
		return defineValue(field)
	}
}

func defineValue(field protoreflect.FieldDescriptor) (*schema, error) {
	zero := 0.0
	switch field.Kind() {
	case protoreflect.StringKind:
		return &schema{Type: "string"}, nil
	case protoreflect.BoolKind:
		return &schema{Type: "boolean"}, nil
	case protoreflect.DoubleKind:
		return &schema{Type: "number"}, nil
	case protoreflect.Int32Kind:
		return &schema{Type: "integer"}, nil
	case protoreflect.Uint32Kind:
		return &schema{Type: "integer", Minimum: &zero}, nil
	case protoreflect.Int64Kind:
		return &schema{IntOrString: true}, nil
	case protoreflect.EnumKind:
		values := field.Enum().Values()
		enum := &schema{Type: "string"}
		for i := range values.Len() {
			enum.Enum = append(enum.Enum, string(values.Get(i).Name()))
		}
		return enum, nil
	case protoreflect.MessageKind:
		if strings.HasSuffix(string(field.Message().FullName()), "Value") && field.Message().ParentFile().Package() == "google.protobuf" {
			return defineValue(field.Message().Fields().ByNumber(1))
		}
		return define(field.Message())
	default:
		return nil, fmt.Errorf("unknown type %s", field.Kind())
	}
}

// addRules adds the rules in the comment of a field or message. It returns whether a field is required.
func (s *schema) addRules(of protoreflect.Descriptor) (isRequired bool, err error) {
	comment := of.ParentFile().SourceLocations().ByDescriptor(of).LeadingComments
	for _, found := range marker.FindAllStringSubmatch(comment, -1) {
		name, value := found[1], found[2]
		switch name {
		case "Required":
			isRequired = true
		case "Minimum":
			err = json.Unmarshal([]byte(value), &s.Minimum)
		case "Maximum":
			err = json.Unmarshal([]byte(value), &s.Maximum)
		case "MinItems":
			err = json.Unmarshal([]byte(value), &s.MinItems)
		case "MaxItems":
			err = json.Unmarshal([]byte(value), &s.MaxItems)
		case "MaxLength":
			err = json.Unmarshal([]byte(value), &s.MaxLength)
		case "XValidation":
			err = s.addXValidation(value)
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
	env, err := cel.NewEnv(cel.Variable("self", cel.DynType))
	if err != nil {
		return err
	}
	ast, issues := env.Compile(parts[1])
	if issues.Err() != nil {
		return issues.Err()
	}
	program, err := env.Program(ast)
	s.Rules = append(s.Rules, rule{parts[1], parts[2], program})
	return err
}

// check returns the rules that a value breaks. A field that is null counts as absent, as for the API server.
func (s *schema) check(at string, value any) (broken []string) {
	say := func(format string, args ...any) { broken = append(broken, at+": "+fmt.Sprintf(format, args...)) }
	isInteger := func(v float64) bool { return v == math.Trunc(v) }
	kind := ""
	switch v := value.(type) {
	case nil:
		return nil
	case map[string]any:
		kind = "object"
		for key, inner := range v {
			child := s.Values
			if child == nil {
				child = s.Properties[key]
			}
			if child == nil {
				say("unknown field %s", key)
				continue
			}
			broken = append(broken, child.check(at+"."+key, inner)...)
			if inner == nil {
				delete(v, key)
			}
		}
		for _, key := range s.Required {
			if v[key] == nil {
				say("%s is required", key)
			}
		}
	case []any:
		kind = "array"
		if s.Items != nil {
			for i, item := range v {
				if item == nil {
					say("item %d is null", i)
				}
				broken = append(broken, s.Items.check(fmt.Sprintf("%s[%d]", at, i), item)...)
			}
		}
		if s.MinItems != nil && len(v) < *s.MinItems || s.MaxItems != nil && len(v) > *s.MaxItems {
			say("%d items", len(v))
		}
	case float64:
		kind = "number"
		if s.Type != "number" && isInteger(v) {
			kind = "integer"
		}
		if s.Minimum != nil && v < *s.Minimum || s.Maximum != nil && v > *s.Maximum {
			say("%v is out of range", v)
		}
	case string:
		kind = "string"
		if s.Enum != nil && !slices.Contains(s.Enum, v) {
			say("unknown value %s", v)
		}
		if s.MaxLength != nil && len([]rune(v)) > *s.MaxLength {
			say("longer than %d", *s.MaxLength)
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
