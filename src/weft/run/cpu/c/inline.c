/* A function that is part of every function that uses it, so that what that computes does not depend on what is compiled with it:
   products and sums become one operation only where the compiler sees both. */
#define INLINE static inline __attribute__((always_inline))
