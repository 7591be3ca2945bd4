// The loop of activation quantisation, written once over an instruction set's
//   prepare_group<Form>(const float a[64], std::int8_t* codes, GroupScale& scale)
// Included inside its namespace and target region. No include guard.
template <class Form>
void prepare_rows(const float* x, std::size_t x_stride, const Activations& a) {
  std::int8_t* codes = a.codes;
  GroupScale* scale = a.scales;
  for (std::size_t i = 0; i < a.m; ++i, x += x_stride) {
    std::size_t k = 0;
    for (; k + tile_cols <= a.k; k += tile_cols, codes += tile_cols * Form::bytes_per_code)
      prepare_group<Form>(x + k, codes, *scale++);
    if (k < a.k) {
      alignas(64) float padded[tile_cols] = {};
      for (std::size_t j = 0; k + j < a.k; ++j) padded[j] = x[k + j];
      prepare_group<Form>(padded, codes, *scale++);
      codes += tile_cols * Form::bytes_per_code;
    }
  }
}

inline void prepare(const float* x, std::size_t x_stride, const Activations& a) noexcept {
  a.form == ActivationForm::a16 ? prepare_rows<A16>(x, x_stride, a) : prepare_rows<A8>(x, x_stride, a);
}
