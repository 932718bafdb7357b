// Before everything else, for MinGW: what WinFsp's headers expect of Microsoft's. It is for checking types; nothing was linked with it.
#include <assert.h>

#define WIN32_NO_STATUS
#include <windows.h>
#undef WIN32_NO_STATUS

// WinFsp declares it as a function, and what belongs to links itself where this is not defined.
#undef _ReadWriteBarrier
#undef SYMLINK_FLAG_RELATIVE
