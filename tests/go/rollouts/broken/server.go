package main

import (
	"bufio"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/yamux"
)

// Violations of the protocol that go-plugin's own server does not allow. Some have a value after a colon.
var protocolFaults = []string{
	// No fault, for comparison.
	"own-server",
	// The handshake line, its socket, and the environment.
	"field", "newest-version", "needs-versions", "needs-ports", "no-socket", "deaf", "public", "elsewhere",
	// The session.
	"no-ack", "no-pong", "no-ping", "one-ping", "sulks", "answers-anything", "dispenses-once", "forgets-first",
	// The calls.
	"silent", "tires", "short-messages", "stalls", "type",
	// The end of the process.
	"falls-asleep", "quits-silently", "outlives-host", "first-connection", "leaves-socket", "abandons", "alone",
}

// server is a plugin server with an optional fault. Without a fault it behaves like go-plugin's server.
type server struct {
	name, value string
	plugin      goplugin.Plugin
	dispensed   string
	socket      string

	mutex   sync.Mutex
	sulks   bool
	replies map[string]int
	first   net.Conn
	nextID  uint32
	asked   time.Time
}

// serveWithFault serves a plugin under the name dispensed if the fault is a violation of the protocol.
func serveWithFault(fault, kind, dispensed string, plugin goplugin.Plugin) bool {
	name, value, _ := strings.Cut(fault, ":")
	if !slices.Contains(protocolFaults, name) {
		return false
	}
	if os.Getenv(cookie) != kind {
		fmt.Fprintln(os.Stderr, "this is a plugin")
		os.Exit(1)
	}
	signal.Ignore(os.Interrupt)
	s := &server{name: name, value: value, plugin: plugin, dispensed: dispensed, replies: map[string]int{}}
	s.run()
	return true
}

func (s *server) is(fault string) bool { return s.name == fault }

func (s *server) run() {
	versions := os.Getenv("PLUGIN_PROTOCOL_VERSIONS")
	if s.is("needs-versions") && versions == "" || s.is("needs-ports") && os.Getenv("PLUGIN_MIN_PORT") == "" {
		os.Exit(1)
	}
	if s.is("alone") {
		// The kernel removes an abstract name with its process. The parent is the kit.
		_, err := net.Listen("unix", fmt.Sprint("@broken-", os.Getppid()))
		exitOn(err)
	}
	directory := os.TempDir()
	if s.is("elsewhere") || s.is("abandons") {
		directory = s.value
	}
	s.socket = filepath.Join(directory, fmt.Sprint("plugin", os.Getpid()))
	if s.is("elsewhere") {
		// The same name for every process, as if a killed process had left its socket.
		s.socket = filepath.Join(directory, "plugin")
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket})
	exitOn(err)
	mode := os.FileMode(0o600)
	if s.is("public") {
		mode = 0o777
	}
	exitOn(os.Chmod(s.socket, mode))
	if s.is("deaf") {
		listener.SetUnlinkOnClose(false)
		exitOn(listener.Close())
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		s.exit()
	}()
	fmt.Println(s.line(versions))
	for {
		connection, err := listener.Accept()
		if err != nil {
			select {}
		}
		if s.is("first-connection") {
			s.session(connection)
			select {}
		}
		go s.session(connection)
	}
}

// line returns the handshake line.
func (s *server) line(versions string) string {
	fields := []string{"1", "1", "unix", s.socket, "netrpc", "", ""}
	switch s.name {
	case "newest-version":
		newest := 1
		for _, text := range strings.Split(versions, ",") {
			if version, err := strconv.Atoi(text); err == nil {
				newest = max(newest, version)
			}
		}
		fields[1] = strconv.Itoa(newest)
	case "no-socket":
		fields[3] += "-that-is-not-there"
	case "field":
		number, value, _ := strings.Cut(s.value, "=")
		index, err := strconv.Atoi(number)
		exitOn(err)
		fields[index] = value
	}
	if fields[6] == "" {
		fields = fields[:6]
	}
	return strings.Join(fields, "|")
}

func (s *server) exit() {
	if !s.is("leaves-socket") && !s.is("abandons") {
		_ = os.Remove(s.socket)
	}
	os.Exit(0)
}

// quitsSilently returns whether this process exits without a reply to Quit: each one, or the first two of those that share the file in
// the value.
func (s *server) quitsSilently() bool {
	if s.value == "" {
		return true
	}
	silent, _ := os.ReadFile(s.value)
	if len(silent) == 2 {
		return false
	}
	exitOn(os.WriteFile(s.value, append(silent, '.'), 0o600))
	return true
}

func (s *server) session(connection net.Conn) {
	config := yamux.DefaultConfig()
	config.LogOutput = io.Discard
	mux, err := yamux.Server(frames{connection, s}, config)
	exitOn(err)
	var streams [3]net.Conn
	for index := range streams {
		if streams[index], err = mux.Accept(); err != nil {
			return
		}
	}
	control := rpc.NewServer()
	exitOn(control.RegisterName("Control", controls{}))
	exitOn(control.RegisterName("Dispenser", dispenser{s, mux}))
	s.serve(control, streams[0])
	if !s.is("outlives-host") {
		s.exit()
	}
}

func (s *server) serve(server *rpc.Server, stream net.Conn) {
	counted := &counter{Conn: stream}
	buffer := bufio.NewWriter(counted)
	server.ServeCodec(&codec{server: s, stream: counted, buffer: buffer, decoder: gob.NewDecoder(counted), encoder: gob.NewEncoder(buffer)})
}

// controls are the methods of the host's own stream.
type controls struct{}

func (controls) Ping(bool, *struct{}) error {
	stall.Lock()
	defer stall.Unlock()
	return nil
}

func (controls) Quit(bool, *struct{}) error { return nil }

type dispenser struct {
	server *server
	mux    *yamux.Session
}

func (d dispenser) Dispense(name string, id *uint32) error {
	s := d.server
	if name != s.dispensed {
		return errors.New("unknown plugin type: " + name)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.nextID++
	*id = s.nextID
	if s.is("dispenses-once") && s.nextID > 1 {
		return errors.New("there is only one")
	}
	if s.is("forgets-first") && s.nextID > 1 {
		_ = s.first.Close()
	}
	go func() {
		stream, err := d.mux.Accept()
		if err != nil {
			return
		}
		if s.first == nil {
			s.first = stream
		}
		var claimed uint32
		exitOn(binary.Read(stream, binary.LittleEndian, &claimed))
		exitOn(binary.Write(stream, binary.LittleEndian, claimed))
		served, err := s.plugin.Server(nil)
		exitOn(err)
		methods := rpc.NewServer()
		exitOn(methods.RegisterName("Plugin", served))
		s.serve(methods, stream)
	}()
	return nil
}

// codec is the gob codec of net/rpc with faults.
type codec struct {
	server  *server
	stream  *counter
	buffer  *bufio.Writer
	decoder *gob.Decoder
	encoder *gob.Encoder
	begin   int
}

func (c *codec) ReadRequestHeader(request *rpc.Request) error {
	if err := c.decoder.Decode(request); err != nil {
		return err
	}
	c.begin = c.stream.read
	s := c.server
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.asked.IsZero() && time.Since(s.asked) > 700*time.Millisecond && s.is("falls-asleep") {
		select {}
	}
	s.asked = time.Now()
	return nil
}

func (c *codec) ReadRequestBody(body any) error {
	if err := c.decoder.Decode(body); err != nil {
		return err
	}
	if c.server.is("short-messages") && c.stream.read-c.begin > 512<<10 {
		return c.Close()
	}
	return nil
}

func (c *codec) WriteResponse(response *rpc.Response, body any) error {
	s := c.server
	unknown := strings.HasPrefix(response.Error, "rpc: ") || strings.HasPrefix(response.Error, "unknown plugin")
	if s.withholds(response.ServiceMethod, unknown) {
		return nil
	}
	if unknown && s.is("answers-anything") {
		response.Error, body = "", uint32(1)
	}
	quits := response.ServiceMethod == "Control.Quit"
	if quits && s.is("quits-silently") && s.quitsSilently() {
		s.exit()
	}
	var header any = response
	if s.is("type") && response.Error == "" {
		header, body = retyped(s.value, response, body)
	}
	if err := c.encoder.Encode(header); err != nil {
		return err
	}
	if err := c.encoder.Encode(body); err != nil {
		return err
	}
	err := c.buffer.Flush()
	if quits {
		// The multiplexer sends in another goroutine.
		time.AfterFunc(50*time.Millisecond, s.exit)
	}
	return err
}

// retyped returns a reply of which one part has another type: a header, or the body of one method. All have values that a decoder which
// looks only at the values accepts.
func retyped(part string, response *rpc.Response, body any) (header, other any) {
	type failure = struct{ ErrorString string }
	switch part + " " + response.ServiceMethod {
	case "ping Control.Ping":
		return response, true
	case "dispense Dispenser.Dispense":
		return response, int64(*body.(*uint32))
	case "error-name Plugin.SetWeight":
		return response, struct{ Error string }{}
	case "error-bytes Plugin.SetWeight":
		return response, struct{ ErrorString []byte }{}
	case "verified Plugin.VerifyWeight":
		return response, struct {
			Verified uint32
			Err      failure
		}{Verified: 1}
	case "value Plugin.Run":
		return response, struct {
			Phase string
			Value int64
		}{Phase: "Successful"}
	case "started Plugin.Run":
		return response, struct{ Phase, StartedAt string }{Phase: "Successful"}
	case "status Plugin.Run":
		return response, struct {
			Result struct{ Phase, Status string }
			Error  failure
		}{Result: struct{ Phase, Status string }{Phase: "Successful"}}
	case "requeue Plugin.Run":
		type result struct {
			Phase        string
			RequeueAfter uint64
		}
		return response, struct {
			Result result
			Error  failure
		}{Result: result{Phase: "Successful"}}
	}
	if part == "seq" {
		return struct {
			ServiceMethod string
			Seq           int64
			Error         string
		}{response.ServiceMethod, int64(response.Seq), response.Error}, body
	}
	return response, body
}

func (c *codec) Close() error { return c.stream.Close() }

// withholds returns whether a reply is not sent.
func (s *server) withholds(method string, unknown bool) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.replies[method]++
	s.sulks = s.sulks || unknown
	switch s.name {
	case "no-ping":
		return method == "Control.Ping"
	case "one-ping":
		return method == "Control.Ping" && s.replies[method] > 1
	case "sulks":
		return s.sulks && (method == "Control.Ping" || method == "Plugin.Type")
	case "silent":
		return method == "Plugin."+s.value
	case "tires":
		limit, err := strconv.Atoi(s.value)
		exitOn(err)
		return method == "Plugin.Type" && s.replies[method] > limit
	}
	return false
}

// counter counts the bytes that are read.
type counter struct {
	net.Conn
	read int
}

func (c *counter) Read(into []byte) (int, error) {
	read, err := c.Conn.Read(into)
	c.read += read
	return read, err
}

// frames drops frames of yamux, which writes each header separately.
type frames struct {
	net.Conn
	server *server
}

func (f frames) Write(header []byte) (int, error) {
	const ping, acknowledges = 2, 2
	if len(header) != 12 || header[0] != 0 {
		return f.Conn.Write(header)
	}
	kind, flags, stream := header[1], binary.BigEndian.Uint16(header[2:]), binary.BigEndian.Uint32(header[4:])
	if flags&acknowledges != 0 {
		if f.server.is("no-pong") && kind == ping {
			return len(header), nil
		}
		if f.server.is("no-ack") && kind != ping && fmt.Sprint(stream) == f.server.value {
			header = slices.Clone(header)
			binary.BigEndian.PutUint16(header[2:], flags&^acknowledges)
		}
	}
	return f.Conn.Write(header)
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
