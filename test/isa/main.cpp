// Runs one or both units of unit.cpp, each compiled for another target. Holds nothing of the library itself.
// usage: program baseline|haswell|both [INSTRUCTION SET]
#include <string.h>

namespace baseline {
int run(const char* isa);
}
namespace haswell {
int run(const char* isa);
}

// What argv asks for: a unit that is not linked in is not called.
int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const char* isa = argc > 2 ? argv[2] : nullptr;
  return strcmp(argv[1], "haswell") == 0 ? haswell::run(isa) : baseline::run(isa);
}
