#include "names.h"

#include <stdbool.h>
#include <string.h>

#define ALONE 0xF000u

// The character at the beginning, and how many bytes it takes; 0: what is there is not UTF-8.
static size_t character(const uint8_t *bytes, size_t length, uint32_t *code) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t size = bytes[0] < 0x80   ? 1
                  : bytes[0] < 0xC0 ? 0
                  : bytes[0] < 0xE0 ? 2
                  : bytes[0] < 0xF0 ? 3
                  : bytes[0] < 0xF8 ? 4
                                    : 0;
    if (size == 0 || size > length)
        return 0;
    *code = size == 1 ? bytes[0] : bytes[0] & (0x7Fu >> size);
    for (size_t at = 1; at < size; at++) {
        if ((bytes[at] & 0xC0) != 0x80)
            return 0;
        *code = *code << 6 | (bytes[at] & 0x3F);
    }
    bool surrogate = *code >= 0xD800 && *code < 0xE000;
    return *code < least[size] || *code > 0x10FFFF || surrogate ? 0 : size;
}

// Whether it can be shown as it is. The characters that stand for single bytes would mean something else.
static bool plain(uint32_t code, bool last) {
    if (code < 0x20 || (code < 0x80 && strchr("\"*:<>?|\\/", (int)code)) || (code & ~0xFFu) == ALONE)
        return false;
    // Windows cuts these off.
    return !(last && (code == '.' || code == ' '));
}

size_t name_to_wide(const uint8_t *name, size_t length, uint16_t *wide) {
    size_t count = 0;
    for (size_t at = 0; at < length;) {
        uint32_t code = 0;
        size_t size = character(name + at, length - at, &code);
        if (size == 0 || !plain(code, at + size == length)) {
            wide[count++] = (uint16_t)(ALONE | name[at++]);
        } else {
            at += size;
            if (code >= 0x10000) {
                wide[count++] = (uint16_t)(0xD7C0 + (code >> 10));
                code = 0xDC00 | (code & 0x3FF);
            }
            wide[count++] = (uint16_t)code;
        }
    }
    return count;
}

size_t name_from_wide(const uint16_t *wide, size_t count, uint8_t name[NAME_MOST]) {
    size_t length = 0;
    if (count > NAME_MOST)
        return 0;
    for (size_t at = 0; at < count; at++) {
        uint32_t code = wide[at];
        if (code >= 0xD800 && code < 0xDC00 && at + 1 < count && wide[at + 1] >= 0xDC00 && wide[at + 1] < 0xE000)
            code = 0x10000 + ((code & 0x3FF) << 10) + (wide[++at] & 0x3FF);
        else if (code >= 0xD800 && code < 0xE000)
            return 0;
        bool alone = (code & ~0xFFu) == ALONE;
        size_t size = alone || code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
        if (length + size > NAME_MOST)
            return 0;
        if (size == 1) {
            name[length++] = (uint8_t)code;
            continue;
        }
        name[length++] = (uint8_t)((0xF00u >> size) | code >> 6 * (size - 1));
        for (size_t rest = size - 1; rest-- > 0;)
            name[length++] = (uint8_t)(0x80 | (code >> 6 * rest & 0x3F));
    }
    // One name looks one way: else two would lead to the same file.
    uint16_t again[NAME_MOST];
    bool same = name_to_wide(name, length, again) == count && memcmp(again, wide, count * sizeof *wide) == 0;
    return same && !memchr(name, 0, length) && !memchr(name, '/', length) ? length : 0;
}
