// Run by providers/agentfs/c/tests/winfsp.rs. What is wrong is said on stderr, and it ends with 1.

#include "names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(const char *what, int holds) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static void both(const char *what, const char *name, const uint16_t *wide, size_t count) {
    uint16_t made[NAME_MOST];
    uint8_t back[NAME_MOST];
    size_t length = strlen(name);
    check(what, name_to_wide((const uint8_t *)name, length, made) == count && memcmp(made, wide, count * 2) == 0);
    check(what, name_from_wide(wide, count, back) == length && memcmp(back, name, length) == 0);
}

#define BOTH(name, ...) both(name, name, (const uint16_t[]){__VA_ARGS__}, sizeof((const uint16_t[]){__VA_ARGS__}) / 2)
#define NONE(...)                                                                                                      \
    check(#__VA_ARGS__,                                                                                                \
          name_from_wide((const uint16_t[]){__VA_ARGS__}, sizeof((const uint16_t[]){__VA_ARGS__}) / 2, bytes) == 0)

int main(void) {
    uint8_t bytes[NAME_MOST];
    BOTH("plain.txt", 'p', 'l', 'a', 'i', 'n', '.', 't', 'x', 't');
    BOTH("\xC3\xA4", 0xE4);
    BOTH("\xE2\x82\xAC", 0x20AC);
    BOTH("\xF0\x9F\x98\x80", 0xD83D, 0xDE00);
    BOTH("\xF4\x8F\xBF\xBF", 0xDBFF, 0xDFFF);
    // What is no UTF-8: a byte alone, one too many, too long a form, half a pair, beyond the last, cut off.
    BOTH("a\xFF", 'a', 0xF0FF);
    BOTH("\xC3\xA4\xA4", 0xE4, 0xF0A4);
    BOTH("\xC0\xAE", 0xF0C0, 0xF0AE);
    BOTH("\xED\xA0\x80", 0xF0ED, 0xF0A0, 0xF080);
    BOTH("\xF4\x90\x80\x80", 0xF0F4, 0xF090, 0xF080, 0xF080);
    BOTH("\xE2\x82", 0xF0E2, 0xF082);
    // What Windows does not allow.
    BOTH("a:b", 'a', 0xF03A, 'b');
    BOTH("\\", 0xF05C);
    BOTH("\n?", 0xF00A, 0xF03F);
    BOTH("end.", 'e', 'n', 'd', 0xF02E);
    BOTH("a b ", 'a', ' ', 'b', 0xF020);
    // What would be taken for a byte.
    BOTH("\xEF\x80\xBA", 0xF0EF, 0xF080, 0xF0BA);
    // What is no name, or another's.
    NONE(0xD83D);
    NONE('a', 0xDE00);
    NONE(0xF000);
    NONE(0xF02F);
    NONE('/');
    NONE(0xF041);
    NONE(0xF0C3, 0xF0A4);
    NONE('a', '.');
    uint16_t wide[NAME_MOST + 1];
    for (size_t at = 0; at <= NAME_MOST; at++)
        wide[at] = 'n';
    check("255 bytes", name_from_wide(wide, NAME_MOST, bytes) == NAME_MOST);
    check("256 bytes", name_from_wide(wide, NAME_MOST + 1, bytes) == 0);
    wide[0] = 0xE4;
    check("256 bytes, 255 units", name_from_wide(wide, NAME_MOST, bytes) == 0);
    // Of all names of three bytes out of these, none is lost and no two look the same.
    static const uint8_t some[] = {'a', '.', ' ', ':', 1, 0x80, 0xBA, 0xC3, 0xED, 0xEF, 0xF0, 0xFF};
    for (size_t n = 0; n < sizeof some * sizeof some * sizeof some; n++) {
        uint8_t name[] = {some[n % sizeof some], some[n / sizeof some % sizeof some],
                          some[n / sizeof some / sizeof some]};
        size_t count = name_to_wide(name, sizeof name, wide);
        check("a name of three bytes", name_from_wide(wide, count, bytes) == 3 && memcmp(name, bytes, 3) == 0);
    }
    return 0;
}
