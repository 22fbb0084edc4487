// A module of its own, so that purego stays out of the library's go.mod.
module github.com/rocl-go/rocl/ofi

go 1.26.0

require (
	github.com/ebitengine/purego v0.11.3
	github.com/rocl-go/rocl v0.2.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.50.0
)
