// SPDX-License-Identifier: Apache-2.0

//go:build unix

package node

import (
	"bytes"
	"fmt"
	"net"
	"os"
)

// Process returns the number of the process at the other end of nc, and the name of its program.
// pid is 0 if the kernel does not tell: the process is in another container, or nc is no Unix
// socket. The name is what the program chose.
func Process(nc net.Conn) (pid int, program string) {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return 0, ""
	}
	cred, err := peerOf(uc)
	if err != nil || cred.PID <= 0 {
		return 0, ""
	}
	program, _ = stat(cred.PID)
	return cred.PID, program
}

// processAt describes the process at the other end of nc: its number, its name, and whether it is
// stopped.
func processAt(nc *net.UnixConn) string {
	cred, err := peerOf(nc)
	if err != nil || cred.PID <= 0 {
		return "a process of another container"
	}
	who := fmt.Sprintf("process %d", cred.PID)
	name, state := stat(cred.PID)
	if name != "" {
		who = fmt.Sprintf("%s (%s)", who, name)
	}
	if state == 'T' || state == 't' {
		who += ", which is stopped"
	}
	return who
}

// stat returns the name and the state of a process, "" and 0 if the kernel does not tell.
func stat(pid int) (name string, state byte) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // number (name) state …
	head, tail, ok := bytes.Cut(b, []byte("("))
	end := bytes.LastIndexByte(tail, ')')
	if !ok || len(head) == 0 || end < 0 || end+2 >= len(tail) {
		return "", 0
	}
	return string(tail[:end]), tail[end+2]
}
