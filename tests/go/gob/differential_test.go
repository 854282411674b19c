// Package differential compares the Rust codec with Go's: random values go from Go to Rust and back.
package differential

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"
)

// values is the number of compared values, at most perStream of them on one stream.
const (
	values    = 100_000
	perStream = 16
)

// Value has every kind of gob. crates/gob/examples/echo.rs declares the same types.
type Value struct {
	Yes      bool
	Small    int8
	Middle   int16
	Number   int32
	Large    int64
	Short    uint16
	Huge     uint64
	Single   float32
	Double   float64
	Complex  complex128
	Text     string
	Raw      []byte
	Array    [3]int16
	Texts    [][]string
	Map      map[string][]int64
	Leaves   map[int32]Leaf
	PtrInt   *int32
	PtrText  **string
	PtrMap   *map[string]bool
	PtrLeaf  *Leaf
	At       time.Time
	PtrAt    *time.Time
	Any      any
	Anys     []any
	AnyMap   map[string]any
	Children []Value
	Next     *Value
}

type Leaf struct {
	N     int64
	Inner any
}

type Other struct {
	Text string
	Deep []any
}

type Numbers []int64
type Flags map[string]bool

// registered has the types that an interface can contain.
var registered = []reflect.Type{
	reflect.TypeFor[Leaf](), reflect.TypeFor[Other](), reflect.TypeFor[Numbers](), reflect.TypeFor[Flags](),
	reflect.TypeFor[int](), reflect.TypeFor[string](),
}

func init() {
	gob.RegisterName("Leaf", Leaf{})
	gob.RegisterName("Other", Other{})
	gob.RegisterName("Numbers", Numbers{})
	gob.RegisterName("Flags", Flags{})
}

// Rust returns each value that Go sends, and Go decodes the same from Rust's bytes as from its own.
func TestRandomValuesComeBackFromRust(t *testing.T) {
	echo := start(t)
	seed := int64(1)
	for compared := 0; compared < values; seed++ {
		random := generator{rand.New(rand.NewSource(seed))}
		sent := make([]Value, 1+random.Intn(perStream))
		var stream bytes.Buffer
		encoder := gob.NewEncoder(&stream)
		for index := range sent {
			random.fill(reflect.ValueOf(&sent[index]).Elem(), 3)
			if err := encoder.Encode(sent[index]); err != nil {
				t.Fatal(err)
			}
		}
		returned, err := echo.exchange(stream.Bytes())
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		ours, theirs := gob.NewDecoder(&stream), gob.NewDecoder(bytes.NewReader(returned))
		for index := range sent {
			var want, got Value
			if err := ours.Decode(&want); err != nil {
				t.Fatal(err)
			}
			if err := theirs.Decode(&got); err != nil {
				t.Fatalf("seed %d, value %d: %v", seed, index, err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, value %d:\n got %+v\nwant %+v", seed, index, got, want)
			}
		}
		if err := theirs.Decode(new(Value)); err != io.EOF {
			t.Fatalf("seed %d: more values came back than were sent: %v", seed, err)
		}
		compared += len(sent)
	}
	fmt.Printf("figure: %d streams with at least %d values in each direction\n", seed-1, values)
}

// echo is the process of the Rust codec.
type echo struct {
	in  io.Writer
	out *bufio.Reader
}

func start(t *testing.T) echo {
	t.Helper()
	process := exec.Command(os.Getenv("GOB_ECHO"))
	process.Stderr = os.Stderr
	in, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatalf("GOB_ECHO must be the path of gob's example echo: %v", err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := process.Wait(); err != nil {
			t.Error(err)
		}
	})
	return echo{in, bufio.NewReader(out)}
}

// exchange sends one stream with its length in front, and receives one.
func (e echo) exchange(stream []byte) ([]byte, error) {
	if _, err := e.in.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(stream))), stream...)); err != nil {
		return nil, err
	}
	var length uint32
	if err := binary.Read(e.out, binary.BigEndian, &length); err != nil {
		return nil, err
	}
	returned := make([]byte, length)
	_, err := io.ReadFull(e.out, returned)
	return returned, err
}

// generator fills values. A third of all fields stays zero, because gob omits zero values.
type generator struct{ *rand.Rand }

func (g generator) fill(value reflect.Value, depth int) {
	if g.Intn(3) == 0 {
		return
	}
	switch value.Interface().(type) {
	case time.Time:
		value.Set(reflect.ValueOf(g.time()))
		return
	}
	switch value.Kind() {
	case reflect.Bool:
		value.SetBool(g.Intn(2) == 1)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		value.SetInt(int64(g.Uint64()) >> (64 - value.Type().Bits() + g.Intn(value.Type().Bits())))
	case reflect.Uint16, reflect.Uint64:
		value.SetUint(g.Uint64() >> (64 - value.Type().Bits() + g.Intn(value.Type().Bits())))
	case reflect.Float32, reflect.Float64:
		value.SetFloat(float64(float32(g.NormFloat64())))
	case reflect.Complex128:
		value.SetComplex(complex(g.NormFloat64(), float64(g.Intn(3))))
	case reflect.String:
		value.SetString(strings.Repeat([]string{"", "a", "grüße", "\x00", "日"}[g.Intn(5)], g.Intn(70)))
	case reflect.Struct:
		for index := range value.NumField() {
			g.fill(value.Field(index), depth)
		}
	case reflect.Array:
		for index := range value.Len() {
			g.fill(value.Index(index), depth)
		}
	case reflect.Pointer:
		if depth > 0 {
			value.Set(reflect.New(value.Type().Elem()))
			g.fill(value.Elem(), depth-1)
		}
	case reflect.Slice:
		if value.Type().Elem().Kind() == reflect.Uint8 {
			raw := make([]byte, g.Intn(300))
			g.Read(raw)
			value.SetBytes(raw)
		} else if depth > 0 {
			value.Set(reflect.MakeSlice(value.Type(), g.Intn(4), 4))
			for index := range value.Len() {
				g.fill(value.Index(index), depth-1)
			}
		}
	case reflect.Map:
		if depth > 0 {
			value.Set(reflect.MakeMap(value.Type()))
			for range g.Intn(4) {
				key, element := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
				g.fill(key, depth-1)
				g.fill(element, depth-1)
				value.SetMapIndex(key, element)
			}
		}
	case reflect.Interface:
		if depth > 0 {
			held := reflect.New(registered[g.Intn(len(registered))]).Elem()
			g.fill(held, depth-1)
			value.Set(held)
		}
	default:
		panic(value.Kind())
	}
}

// time returns a time in each kind of zone that gob encodes differently: UTC, whole minutes, and seconds, which need one more
// byte. Go rejects an offset of -1 minute.
func (g generator) time() time.Time {
	zone := time.UTC
	switch g.Intn(3) {
	case 1:
		zone = time.FixedZone("", 60*(g.Intn(1400)+1))
	case 2:
		zone = time.FixedZone("", -(120 + g.Intn(40_000)))
	}
	return time.Unix(g.Int63n(1e11)-5e10, g.Int63n(1e9)).In(zone)
}
