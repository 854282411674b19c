module e2e.test/gloo

go 1.26.0

require (
	github.com/bufbuild/protocompile v0.14.1
	github.com/envoyproxy/go-control-plane v0.12.1-0.20240415211714-57c85e1829e6
	github.com/golang/protobuf v1.5.4
	github.com/google/cel-go v0.29.2
	github.com/solo-io/skv2 v0.40.5
	github.com/solo-io/solo-apis v1.6.32-0.20240925114939-9e6df5259d8e
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/kr/text v0.2.0 // indirect
	go.yaml.in/yaml/v3 v3.0.4 // indirect
)

// Where ../rollouts has the same module, it has the same version, so that a package is compiled once for both.
require (
	cel.dev/expr v0.25.2 // indirect
	github.com/antlr4-go/antlr/v4 v4.13.1 // indirect
	github.com/cncf/xds/go v0.0.0-20240329184929-0c46c01016dc // indirect
	github.com/envoyproxy/protoc-gen-validate v1.0.4 // indirect
	github.com/planetscale/vtprotobuf v0.6.1-0.20240319094008-0393e58bdf10 // indirect
	github.com/solo-io/protoc-gen-ext v0.0.24 // indirect
	golang.org/x/exp v0.0.0-20260410095643-746e56fc9e2f // indirect
	golang.org/x/sync v0.24.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260819154853-08b0e4226688 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260825221802-da73d73af1c5 // indirect
)
