# SPDX-License-Identifier: Apache-2.0
packages_version = $(shell sed -n 's/^const Version = "\(.*\)"$$/\1/p' internal/version/version.go)
.PHONY: packages test race repeat long lint fuzz bench demo ci cluster cluster-figures tools portable bigendian arm64 i386 scaling sustain windows benchmarks figures libpvm3 apidiff simulate

test:    ; go test work
race:    ; go test -race work
repeat:  ; .ci/repeat 30 # the whole suite, thirty times, beside busy loops: hours
long:    ; go test ./ofi -long && go test -timeout 60m -run 'CutAnywhere|TestCallKilledAnywhere' ./dispatch -long && go test -timeout 60m ./bulk -long && go test -run TestManyMonitors ./dispatch -monitors 1000000 && go test -run TestSession ./dispatch/internal/session -rapid.checks=20000 && go test -run TestCrowd ./tests -crowd.processes 40 && go test -run 'TestLargeBesideLittleMemory|TestAbandonedCalls' ./tests -long-memory && go test -timeout 60m -run TestBrowserHour ./cmd/dirserver -long
cluster: tools ; ROCL_LONG=1 go test -v -count=1 -timeout 4h ./tests/cluster
cluster-figures: tools ; cd tests/cluster && go test -count=5 -parallel 1 -timeout 1h -run 'TestDeath|TestLoss|TestPartition/halves|TestProcessDeathSeen' -figures
tools:   ; command -v ip && command -v nft || .ci/install iproute2 nftables
portable: # what has no epoll, memfd or index: its code tested on Linux, and built for each system
	go test -tags portable -short ./subsys/... ./directory/... ./dispatch ./context ./rpc ./bulk
	go run -tags portable ./cmd/rocl demo
	go run ./tests/elsewhere darwin/amd64,darwin/arm64,freebsd/amd64,freebsd/arm64,netbsd/amd64,netbsd/arm64,openbsd/amd64,openbsd/arm64,windows/amd64,windows/arm64 work
	for os in darwin freebsd netbsd openbsd windows; do GOOS=$$os go build work || exit 1; done
windows: # tests by wine: packages wine64 and binutils-mingw-w64-x86-64
	CGO_ENABLED=0 GOOS=windows go test -short -p 2 -exec "$(CURDIR)/.ci/wine" ./resource ./codec ./buffers ./subsys ./subsys/stream ./dispatch/internal/list ./dispatch/internal/progress ./dispatch/internal/session ./directory/internal/database ./directory/internal/search ./directory/internal/wire ./internal/os/sockerr ./context
	CGO_ENABLED=0 GOOS=windows go test -short -timeout 30m -exec "$(CURDIR)/.ci/wine" ./dispatch ./rpc ./directory/internal/node
	CGO_ENABLED=0 GOOS=windows go run -exec "$(CURDIR)/.ci/wine" ./cmd/rocl demo docs
bigendian: # tests on a processor of the other byte order, by qemu-user-static
	CGO_ENABLED=0 GOARCH=s390x go test -short -exec qemu-s390x-static ./resource ./codec ./dispatch/internal/wire ./dispatch/internal/session ./subsys ./tpvm/pack
	ROCL_QEMU=must go test -count=1 ./tests/byteorder
arm64: # tests by qemu-user-static, which on amd64 lets a load overtake an atomic store: then a nap loses a beat
	CGO_ENABLED=0 GOARCH=arm64 go test -short -skip TestNapLosesNothing -exec qemu-aarch64-static ./resource ./codec ./dispatch/internal/wire ./dispatch/internal/session ./subsys ./tpvm/pack
i386: # tests by qemu-system-x86 and Debian's kernel, some minutes; qemu-i386-static does not run Go's threads
	CGO_ENABLED=0 GOARCH=386 go test -short -timeout 20m -exec "$(CURDIR)/.ci/i386" ./subsys
	CGO_ENABLED=0 GOARCH=386 go test -short -timeout 20m -run '^Test(Call|CutAnywhere|Flush|Local.*|Moves|OrderAndCompleteness|PingPong|Streams?)$$' -exec "$(CURDIR)/.ci/i386" ./dispatch
simulate: ; go test -timeout 2h -run TestPromises ./rocltest -span 1h && go test -timeout 2h -run TestPlanted ./rocltest -planted && go test -timeout 2h -run TestSimulated ./dataflow -long && go test -timeout 2h -run TestSimulated ./work -long
lint:    ; test -z "$$(gofmt -l . | tee /dev/stderr)" && go vet work && go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 work && go test -count=1 ./tests/words
fuzz:    ; for f in resource:FuzzParseList resource:FuzzParseText codec:FuzzDecode directory:FuzzServer subsys:FuzzHeader dispatch:FuzzFrames subsys/tls:FuzzWire directory/internal/mux:FuzzDatagram directory/internal/mux:FuzzStream tpvm/pack:FuzzReader pool:FuzzParseConfig rpc:FuzzRequest rpc:FuzzReply bulk:FuzzRequest bulk:FuzzKeys internal/flowfile:FuzzParse; do go test -run XXX -fuzz "$${f#*:}" -fuzztime 30s -fuzzminimizetime 10x "./$${f%:*}" || exit 1; done
bench:   ; go run ./cmd/rocl bench all
benchmarks: ; go build -o build/rocl ./cmd/rocl && build/rocl bench all --into docs/BENCHMARKS.md && build/rocl bench sustain --plot docs/sustain.svg # some minutes, on a quiet machine; writes the table and the picture
sustain: ; go run ./cmd/rocl bench sustain --markdown --plot docs/sustain.svg # a minute; prints a table and draws the picture of docs/BENCHMARKS.md
scaling: ; go run ./directory/internal/scale/scaling # some minutes; writes docs/SCALING.md
figures: ; go run ./tests/figures $(REV) # of the working tree, or of the commits REV
apidiff: ; .ci/apidiff $(REV) # what has changed in the exported Go interface since the last tag, or since the commit REV
demo:    ; go run ./cmd/rocl demo
ci:      ; .ci/run
packages: ; .ci/release $(packages_version) && ROCL_PACKAGES=$(CURDIR)/build/release go test -v -count=1 -timeout 1h -run 'TestDeb|TestRPM|TestReproducible' ./tests # some minutes; into build/release
libpvm3: # PVM's C library, into build/
	go build -buildmode=c-shared -ldflags '-extldflags -Wl,-soname,libpvm3.so' -o build/libpvm3.so ./tpvm/libpvm3
	rm -f build/libpvm3.h && ln -sf libpvm3.so build/libgpvm3.so && cp tpvm/libpvm3/pvm3.h build/
