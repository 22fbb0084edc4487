// SPDX-License-Identifier: Apache-2.0

// Package memfd makes memory that can be shared with other processes: files without a name, of a
// fixed size, whose pages are all allocated at the start. Only the process that made a file can
// write it.
//
// Linux enforces this through seals. No process can truncate the file, so no access to it ends in
// SIGBUS. No process can make a second writable mapping. The files have no name in a file system,
// so a killed process leaves nothing behind.
//
// macOS and the BSDs have no seals. There the file is made in the folder for temporary files, mode
// 0600, and its name is removed at once. The maker keeps no descriptor but one for reading, which
// other processes get. They can neither map the file for writing nor truncate it. But nothing keeps
// the maker, or a debugger, from truncating it, after which a reader ends by SIGBUS. So memory is
// shared with processes of the same user alone, which could as well end the reader by a signal. A
// process that is killed while it makes a file may leave an empty one.
//
// On Linux, a page whose contents need no trust, such as that of a futex word, may be shared for
// writing. Only Linux has memory that is reserved, and allocated later.
package memfd
