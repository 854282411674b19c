// Command decode measures how long Go takes to decode a recorded call that follows others; `cargo xtask bench` runs it.
// Arguments: the recording, and the offsets of the call's start and end. Prints nanoseconds per call.
package main

import (
	"encoding/gob"
	"fmt"
	"io"
	"log"
	"net/rpc"
	"os"
	"strconv"
	"time"

	// Registers the arguments' types.
	plugin "github.com/argoproj/argo-rollouts/rollout/trafficrouting/plugin/rpc"
)

const times = 5000

func main() {
	stream, err := os.ReadFile(os.Args[1])
	check(err)
	begin, err := strconv.Atoi(os.Args[2])
	check(err)
	end, err := strconv.Atoi(os.Args[3])
	check(err)

	input := &repeat{rest: stream[:begin], again: stream[begin:end]}
	decoder := gob.NewDecoder(input)
	for len(input.rest) > 0 {
		decode(decoder)
	}
	// The first call compiles the types for this decoder.
	if _, isWeight := decode(decoder).(*plugin.SetWeightAndVerifyWeightArgs); !isWeight {
		log.Fatal("the call is not SetWeight")
	}
	started := time.Now()
	for range times {
		decode(decoder)
	}
	fmt.Println(time.Since(started).Nanoseconds() / times)
}

func decode(decoder *gob.Decoder) (argument any) {
	var request rpc.Request
	check(decoder.Decode(&request))
	check(decoder.Decode(&argument))
	return argument
}

// repeat reads the rest, then the same bytes repeatedly. It implements io.ByteReader, so gob adds no buffer.
type repeat struct{ rest, again []byte }

func (r *repeat) Read(buffer []byte) (int, error) {
	if len(r.rest) == 0 {
		r.rest = r.again
	}
	count := copy(buffer, r.rest)
	r.rest = r.rest[count:]
	return count, nil
}

func (r *repeat) ReadByte() (byte, error) {
	var one [1]byte
	_, err := io.ReadFull(r, one[:])
	return one[0], err
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
