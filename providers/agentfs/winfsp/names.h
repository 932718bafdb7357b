// Names: bytes in the tree, UTF-16 on Windows. Portable C, so that it is tested wherever the tests run.
//
// A name that is UTF-8 is shown as that. A byte that is none, or that Windows does not allow in a name, is shown as one character of
// its own, U+F000 + byte, as Cygwin and WSL do. So every name in a tree can be seen and opened, no two look the same, and
// what is made on Windows is UTF-8 in the tree.

#ifndef AGENTFS_WINFSP_NAMES_H
#define AGENTFS_WINFSP_NAMES_H

#include <stddef.h>
#include <stdint.h>

// The most that a name of a tree takes, in bytes and so in UTF-16 too.
#define NAME_MOST 255

// A name of a tree as Windows sees it: how many units, at most `length`.
size_t name_to_wide(const uint8_t *name, size_t length, uint16_t *wide);

// The name in the tree that Windows sees as this one: how many bytes. 0: no name is seen so (half a surrogate pair, say), or it is
// longer than NAME_MOST.
size_t name_from_wide(const uint16_t *wide, size_t count, uint8_t name[NAME_MOST]);

#endif
