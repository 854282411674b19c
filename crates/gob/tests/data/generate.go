// Writes the golden files next to it with Go's own encoder: `go run generate.go`.
//
// Every map has at most one entry, because Go sends map entries in random order.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"fmt"
	"log"
	"math"
	"os"
	"runtime"
	"time"
)

type Request struct {
	ServiceMethod string
	Seq           uint64
}

type SetWeightAndVerifyWeightArgs struct {
	Rollout                Rollout
	DesiredWeight          int32
	AdditionalDestinations []WeightDestination
}

type UpdateHashArgs struct {
	Rollout                Rollout
	CanaryHash             string
	StableHash             string
	AdditionalDestinations []WeightDestination
}

type Rollout struct {
	ObjectMeta ObjectMeta
	Spec       RolloutSpec
}

// As metav1.Time: GobEncode is promoted from the embedded time.Time.
type Time struct{ time.Time }

type ObjectMeta struct {
	Name              string
	CreationTimestamp Time
}

type RolloutSpec struct {
	Replicas       *int32
	Paused         bool
	RestartAt      *Time
	Steps          []CanaryStep
	TrafficRouting *RolloutTrafficRouting
}

type CanaryStep struct {
	SetWeight *int32
	Pause     *RolloutPause
}

type RolloutPause struct{ Duration *int32 }

type RawMessage []byte

type RolloutTrafficRouting struct {
	Plugins          map[string]RawMessage
	MaxTrafficWeight *int32
}

type WeightDestination struct {
	Weight          int32
	ServiceName     string
	PodTemplateHash string
}

func session() []any {
	rollout := Rollout{
		ObjectMeta: ObjectMeta{Name: "demo", CreationTimestamp: Time{time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)}},
		Spec: RolloutSpec{
			Replicas:       to(int32(5)),
			Steps:          []CanaryStep{{SetWeight: to(int32(20))}, {Pause: &RolloutPause{}}, {SetWeight: to(int32(0))}},
			TrafficRouting: &RolloutTrafficRouting{Plugins: map[string]RawMessage{"ns/p": RawMessage(`{"a":1}`)}},
		},
	}
	destinations := []WeightDestination{{}, {Weight: 5, ServiceName: "s"}}
	var none any
	var first any = SetWeightAndVerifyWeightArgs{Rollout: rollout, DesiredWeight: 20}
	var second any = SetWeightAndVerifyWeightArgs{Rollout: rollout, DesiredWeight: 40, AdditionalDestinations: destinations}
	var zero any = SetWeightAndVerifyWeightArgs{}
	var hash any = UpdateHashArgs{Rollout: rollout, CanaryHash: "c", StableHash: "s"}
	return []any{
		Request{"Plugin.InitPlugin", 0}, &none,
		Request{"Plugin.SetWeight", 1}, &first,
		Request{"Plugin.SetWeight", 2}, &second,
		Request{"Plugin.SetWeight", 3}, &zero,
		Request{"Plugin.UpdateHash", 4}, &hash,
	}
}

type Inner struct{ X int }

// Everything that is zero, empty or a pointer to it.
type Zeros struct {
	MapOfZero  map[string]int
	EmptyMap   map[string]int
	NilMap     map[string]int
	TwoZeros   []int
	EmptySlice []int
	TwoStructs []Inner
	EmptyBytes []byte
	Number     int
	Fraction   float64
	Imaginary  complex128
	Struct     Inner
	Array      [2]int
	Time       time.Time
	Nil        any
	PtrNumber  *int32
	PtrBool    *bool
	PtrString  *string
	PtrSlice   *[]int
	PtrStruct  *Inner
	PtrTime    *time.Time
	PtrMap     *map[string]int
	Last       string
}

func zeros() []any {
	return []any{Zeros{
		MapOfZero:  map[string]int{"k": 0},
		EmptyMap:   map[string]int{},
		TwoZeros:   []int{0, 0},
		EmptySlice: []int{},
		TwoStructs: []Inner{{}, {}},
		EmptyBytes: []byte{},
		PtrNumber:  to(int32(0)),
		PtrBool:    to(false),
		PtrString:  to(""),
		PtrSlice:   &[]int{},
		PtrStruct:  &Inner{},
		PtrTime:    &time.Time{},
		PtrMap:     &map[string]int{},
		Last:       "end",
	}}
}

type Kinds struct {
	Yes       bool
	Small     int8
	Middle    int16
	Large     int32
	Min       int64
	Max       int64
	Short     uint16
	Word      uint32
	Huge      uint64
	Single    float32
	Double    float64
	Infinite  float64
	Complex   complex128
	Text      string
	Raw       []byte
	Array     [3]int16
	Matrix    [][]float64
	Map       map[int]string
	Nested    map[string][]map[string]bool
	Pointer   **int32
	Anonymous struct{ X uint }
	Empty     struct{}
}

func kinds() []any {
	pointer := to(int32(-7))
	return []any{
		Kinds{
			Yes: true, Small: -128, Middle: 32767, Large: -65, Min: math.MinInt64, Max: math.MaxInt64,
			Short: 65535, Word: 128, Huge: math.MaxUint64,
			Single: 1.5, Double: 17, Infinite: math.Inf(-1), Complex: complex(1, -2),
			Text: "grüße", Raw: []byte{0, 255}, Array: [3]int16{1, 0, -1},
			Matrix: [][]float64{{1, 2}, {}, {3}}, Map: map[int]string{-1: "minus"},
			Nested:  map[string][]map[string]bool{"a": {{"b": true}, {}}},
			Pointer: &pointer, Anonymous: struct{ X uint }{9},
		},
		42, uint(7), "hey", []byte("raw"), 2.5, true, complex(0, 1), []string{"a", ""},
		map[string]int{"one": 1}, [2]bool{true, false}, struct{}{}, time.Unix(1, 5).UTC(),
	}
}

type Box struct {
	Before int
	Value  any
	After  string
	List   []any
	Map    map[string]any
}

type Leaf struct {
	N     int
	Inner any
}

type Other struct {
	Text string
	Deep []any
}

// Definitions inside interface values, and inside interface values inside those.
func interfaces() []any {
	box := Box{
		Before: 1,
		Value:  Leaf{2, Other{"other", []any{Leaf{3, nil}, Numbers{4, 5}}}},
		After:  "after",
		List:   []any{Leaf{6, "text"}, nil, 42, Flags{"on": true}, Other{Text: "x"}},
		Map:    map[string]any{"key": Other{Text: "y", Deep: []any{nil}}},
	}
	var top any = Leaf{7, Leaf{8, nil}}
	return []any{box, &top, box}
}

type Numbers []int
type Flags map[string]bool

type Tree struct {
	Name     string
	Children []Tree
	Next     *Tree
}

type Nest []Nest

type Left struct{ Right *Right }
type Right struct{ Lefts []Left }

func recursive() []any {
	return []any{
		Tree{"root", []Tree{{"a", nil, nil}, {"b", []Tree{{}}, nil}}, &Tree{Name: "next"}},
		Nest{{}, {{}, {}}},
		Left{&Right{[]Left{{}, {&Right{}}}}},
	}
}

type Gobber struct{ text string }

func (g Gobber) GobEncode() ([]byte, error) { return []byte("gob:" + g.text), nil }

type Marshaler struct{ text string }

func (m Marshaler) MarshalBinary() ([]byte, error) { return []byte("bin:" + m.text), nil }

type Opaque struct {
	Gob    Gobber
	Binary *Marshaler
	List   []Marshaler
	Times  []time.Time
}

func opaque() []any {
	at := func(nanos int, offset int) time.Time {
		return time.Date(2024, 5, 6, 7, 8, 9, nanos, time.FixedZone("", offset))
	}
	return []any{Opaque{
		Gob:    Gobber{"g"},
		Binary: &Marshaler{"m"},
		List:   []Marshaler{{}, {"n"}},
		Times: []time.Time{
			{}, time.Unix(0, 0).UTC(), at(0, 0), at(123456789, 19800), at(0, -8*3600), at(0, 90), at(0, -3630),
		},
	}}
}

type Strings struct {
	Text  string
	Bytes string
}

func invalid() []any {
	return []any{Strings{"text", "\xff\xfe"}, "\xc3", Strings{"more", ""}}
}

func main() {
	gob.RegisterName("SetWeightAndVerifyWeightArgs", SetWeightAndVerifyWeightArgs{})
	gob.RegisterName("UpdateHashArgs", UpdateHashArgs{})
	gob.RegisterName("Leaf", Leaf{})
	gob.RegisterName("Other", Other{})
	gob.RegisterName("Numbers", Numbers{})
	gob.RegisterName("Flags", Flags{})

	manifest := fmt.Sprintf("Written by generate.go with %s.\n\n", runtime.Version())
	for _, file := range []struct {
		name   string
		values []any
	}{
		{"session.gob", session()},
		{"zeros.gob", zeros()},
		{"kinds.gob", kinds()},
		{"interfaces.gob", interfaces()},
		{"recursive.gob", recursive()},
		{"opaque.gob", opaque()},
		{"invalid_utf8.gob", invalid()},
	} {
		var stream bytes.Buffer
		encoder := gob.NewEncoder(&stream)
		for _, value := range file.values {
			check(encoder.Encode(value))
		}
		check(os.WriteFile(file.name, stream.Bytes(), 0o644))
		manifest += fmt.Sprintf("%x  %s\n", sha256.Sum256(stream.Bytes()), file.name)
	}
	source, err := os.ReadFile("generate.go")
	check(err)
	manifest += fmt.Sprintf("%x  generate.go\n", sha256.Sum256(source))
	check(os.WriteFile("MANIFEST", []byte(manifest), 0o644))
}

func to[T any](value T) *T { return &value }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
