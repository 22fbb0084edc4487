//go:build !race && !rocldebug

package rocl_test

const watched = false
