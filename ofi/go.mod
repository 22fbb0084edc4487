// A module of its own, so that purego stays out of the library's go.mod.
module github.com/rocl-go/rocl/ofi

go 1.26.0

require (
	github.com/ebitengine/purego v0.11.3
	github.com/rocl-go/rocl v0.2.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.50.0
)

require (
	github.com/dchest/siphash v1.2.3 // indirect
	github.com/fxamacker/cbor/v2 v2.10.0 // indirect
	github.com/x448/float16 v0.8.4 // indirect
)
