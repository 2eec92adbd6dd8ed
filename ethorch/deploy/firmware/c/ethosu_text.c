/* Names of errors. They are in a separate file so that firmware that does not print them does not contain them. */
#include "ethosu.h"

const char *ethosu_text(ethosu_status status) {
  static const char *const names[] = {
      "OK",           "NO_NPU",      "NO_RESET",    "PROTECTION",   "BAD_STREAM", "OTHER_NPU",    "OTHER_VERSION",
      "BAD_ADDRESS",  "BUSY",        "TIMEOUT",     "BUS_FAULT",    "PARSE_ERROR", "WEIGHT_FAULT", "ECC_FAULT",
      "BRANCH_FAULT", "NOT_ENDED",   "SMALL_MEMORY", "CORRUPT_DATA", "BAD_VALUE",
  };
  return ((uint32_t)status < (sizeof names / sizeof names[0])) ? names[status] : "UNKNOWN";
}
