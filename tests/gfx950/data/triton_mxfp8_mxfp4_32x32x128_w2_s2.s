	.amdgcn_target "amdgpu9.50-amd-amdhsa-unknown-gfx950"
	.amdhsa_code_object_version 5
	.text
	.globl	mx_gemm
	.p2align	8
	.type	mx_gemm,@function
mx_gemm:
	s_load_dwordx8 s[8:15], s[4:5], 0x0
	s_waitcnt lgkmcnt(0)
	s_branch .LBB0_0
	.p2align	8
.LBB0_0:
	s_load_dwordx4 s[24:27], s[4:5], 0x20
	s_load_dword s40, s[4:5], 0x30
	v_and_b32_e32 v3, 0x3ff, v0
	s_mov_b64 s[36:37], s[10:11]
	v_readfirstlane_b32 s0, v3
	v_lshrrev_b32_e32 v1, 1, v0
	s_waitcnt lgkmcnt(0)
	s_ashr_i32 s11, s40, 31
	s_bfe_u32 s18, s0, 0x10006
	v_and_b32_e32 v1, 28, v1
	s_lshr_b32 s4, s40, 31
	s_lshr_b32 s11, s11, 27
	s_lshl_b32 s33, s16, 5
	v_or_b32_e32 v4, s18, v1
	v_lshlrev_b32_e32 v2, 4, v3
	s_add_i32 s4, s40, s4
	s_add_i32 s11, s40, s11
	s_lshl_b32 s35, s18, 6
	v_or_b32_e32 v5, 2, v4
	v_or_b32_e32 v7, s33, v4
	s_lshl_b32 s34, s17, 5
	v_and_b32_e32 v8, 0x70, v2
	s_ashr_i32 s19, s4, 1
	s_ashr_i32 s21, s11, 5
	s_mov_b64 s[28:29], s[14:15]
	v_or_b32_e32 v10, s33, v5
	v_cmp_gt_i32_e32 vcc, s26, v7
	s_mul_i32 s10, s40, s33
	s_cmp_gt_i32 s40, 0
	v_cmp_gt_i32_e64 s[14:15], s40, v8
	v_mul_lo_u32 v4, v4, s40
	v_cmp_gt_i32_e64 s[0:1], s26, v10
	s_cselect_b64 s[22:23], -1, 0
	v_mul_lo_u32 v5, v5, s40
	v_add3_u32 v4, v4, v8, s10
	s_mul_i32 s42, s18, 0x420
	v_bfrev_b32_e32 v17, 1
	s_and_b64 s[16:17], s[14:15], vcc
	v_and_or_b32 v16, v0, 63, s35
	v_and_b32_e32 v9, 15, v0
	v_and_b32_e32 v15, 48, v0
	v_add3_u32 v5, v5, v8, s10
	s_and_b32 s9, s9, 0xffff
	s_mov_b32 s11, 0x27000
	s_mov_b32 s10, 0x7ffffffe
	v_cndmask_b32_e64 v4, v17, v4, s[16:17]
	s_mov_b32 m0, s42
	s_and_b64 s[14:15], s[14:15], s[0:1]
	v_lshl_or_b32 v6, s18, 4, v9
	v_lshrrev_b32_e32 v14, 2, v16
	v_or_b32_e32 v2, 8, v15
	v_and_b32_e32 v0, 3, v0
	buffer_load_dwordx4 v4, s[8:11], 0 offen lds
	s_add_i32 m0, s42, 0x840
	v_cndmask_b32_e64 v4, v17, v5, s[14:15]
	v_cmp_gt_i32_e64 s[14:15], s19, v15
	v_or_b32_e32 v11, s33, v14
	buffer_load_dwordx4 v4, s[8:11], 0 offen lds
	v_cmp_gt_i32_e64 s[16:17], s19, v2
	s_and_b64 s[44:45], s[14:15], s[22:23]
	v_mul_lo_u32 v4, v6, s19
	v_cmp_gt_i32_e64 s[14:15], s21, v0
	v_cmp_gt_i32_e64 s[2:3], s26, v11
	s_mul_i32 s20, s21, s33
	s_and_b64 s[46:47], s[16:17], s[22:23]
	v_add_u32_e32 v22, v4, v15
	v_add_u32_e32 v23, v4, v2
	v_mad_u64_u32 v[4:5], s[16:17], v14, s21, v[0:1]
	s_and_b64 s[22:23], s[14:15], s[22:23]
	v_or_b32_e32 v13, s34, v14
	v_add_u32_e32 v24, s20, v4
	s_and_b64 s[16:17], s[22:23], s[2:3]
	v_or_b32_e32 v12, s34, v6
	v_cmp_gt_i32_e64 s[6:7], s27, v13
	s_mul_i32 s30, s21, s34
	s_and_b32 s13, s13, 0xffff
	s_mov_b32 s14, s10
	s_mov_b32 s15, s11
	v_cndmask_b32_e64 v5, v17, v24, s[16:17]
	v_cmp_gt_i32_e64 s[4:5], s27, v12
	s_mul_i32 s41, s19, s34
	buffer_load_ubyte v10, v5, s[12:15], 0 offen
	v_add_u32_e32 v25, s30, v4
	s_and_b64 s[14:15], s[22:23], s[6:7]
	v_add_u32_e32 v6, s41, v22
	s_and_b32 s29, s29, 0xffff
	s_mov_b32 s30, s10
	s_mov_b32 s31, s11
	v_cndmask_b32_e64 v4, v17, v25, s[14:15]
	s_and_b64 s[14:15], s[44:45], s[4:5]
	v_add_u32_e32 v7, s41, v23
	s_and_b32 s37, s37, 0xffff
	s_mov_b32 s38, s10
	buffer_load_ubyte v11, v4, s[28:31], 0 offen
	s_mov_b32 s39, s11
	v_cndmask_b32_e64 v4, v17, v6, s[14:15]
	s_and_b64 s[14:15], s[46:47], s[4:5]
	v_cndmask_b32_e64 v5, v17, v7, s[14:15]
	buffer_load_dwordx2 v[32:33], v4, s[36:39], 0 offen
	buffer_load_dwordx2 v[34:35], v5, s[36:39], 0 offen
	s_add_i32 s43, s40, 0xffffff80
	s_mov_b32 s20, 0
	v_add_u32_e32 v4, 0, v16
	s_cmp_lt_i32 s43, 1
	v_lshlrev_b32_e32 v18, 10, v0
	v_lshlrev_b32_e32 v20, 5, v3
	v_lshlrev_b32_e32 v19, 5, v0
	v_lshrrev_b32_e32 v21, 4, v15
	s_waitcnt vmcnt(3)
	ds_write_b8 v4, v10 offset:8416
	s_waitcnt vmcnt(2)
	ds_write_b8 v4, v11 offset:8672
	s_cbranch_scc1 .LBB0_3
	s_add_i32 s18, s18, s33
	v_sub_u32_e32 v28, s21, v0
	v_add_u32_e32 v0, s18, v1
	v_add_u32_e32 v1, 2, v0
	v_mov_b32_e32 v4, 0
	v_sub_u32_e32 v26, s19, v15
	v_sub_u32_e32 v27, s19, v2
	v_and_b32_e32 v29, 0x180, v20
	v_lshl_or_b32 v30, v9, 2, v21
	v_mad_u64_u32 v[10:11], s[14:15], s40, v1, v[8:9]
	v_mad_u64_u32 v[12:13], s[14:15], s40, v0, v[8:9]
	s_movk_i32 s44, 0x20e0
	s_movk_i32 s47, 0x21e0
	s_movk_i32 s46, 0x80
	s_mov_b32 s45, 0xc0c0004
	s_mov_b32 s48, 0
	v_mov_b32_e32 v5, v4
	v_mov_b32_e32 v6, v4
	v_mov_b32_e32 v7, v4
	v_mov_b32_e32 v0, v4
	v_mov_b32_e32 v1, v4
	v_mov_b32_e32 v2, v4
	v_mov_b32_e32 v3, v4
.LBB0_2:
	s_add_i32 s18, s48, 1
	v_add_u32_e32 v11, s46, v8
	s_cmp_lt_i32 s18, 2
	v_cmp_gt_i32_e64 s[16:17], s40, v11
	s_mov_b32 s49, s20
	v_add_u32_e32 v13, s46, v12
	v_add_u32_e32 v31, s46, v10
	s_cselect_b32 s48, s18, 0
	s_ashr_i32 s20, s46, 1
	s_ashr_i32 s22, s46, 5
	s_and_b64 s[18:19], vcc, s[16:17]
	s_and_b64 s[16:17], s[0:1], s[16:17]
	v_cndmask_b32_e64 v11, v17, v13, s[18:19]
	v_cndmask_b32_e64 v13, v17, v31, s[16:17]
	s_lshl_b32 s50, s48, 12
	v_cmp_lt_i32_e64 s[16:17], s20, v26
	v_cmp_lt_i32_e64 s[18:19], s20, v27
	s_add_i32 s23, s20, s41
	v_cmp_lt_i32_e64 s[20:21], s22, v28
	v_add_u32_e32 v31, s22, v24
	v_add_u32_e32 v36, s22, v25
	s_lshr_b32 s51, s50, 5
	v_add_u32_e32 v37, s23, v22
	v_add_u32_e32 v38, s23, v23
	s_and_b64 s[22:23], s[2:3], s[20:21]
	s_and_b64 s[20:21], s[6:7], s[20:21]
	s_and_b64 s[16:17], s[4:5], s[16:17]
	v_cndmask_b32_e64 v36, v17, v36, s[20:21]
	s_add_i32 s20, s50, s51
	v_cndmask_b32_e64 v37, v17, v37, s[16:17]
	s_add_i32 s16, s20, s42
	s_mov_b32 m0, s16
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_mov_b32 s14, s10
	s_mov_b32 s15, s11
	s_and_b64 s[18:19], s[4:5], s[18:19]
	v_cndmask_b32_e64 v31, v17, v31, s[22:23]
	buffer_load_dwordx4 v11, s[8:11], 0 offen lds
	s_add_i32 m0, s16, 0x840
	s_mov_b32 s38, s10
	s_mov_b32 s39, s11
	s_mov_b32 s30, s10
	s_mov_b32 s31, s11
	v_cndmask_b32_e64 v38, v17, v38, s[18:19]
	buffer_load_dwordx4 v13, s[8:11], 0 offen lds
	buffer_load_ubyte v50, v31, s[12:15], 0 offen
	buffer_load_ubyte v51, v36, s[28:31], 0 offen
	buffer_load_dwordx2 v[46:47], v37, s[36:39], 0 offen
	buffer_load_dwordx2 v[48:49], v38, s[36:39], 0 offen
	v_add3_u32 v13, s49, v29, v18
	s_add_i32 s14, s35, s47
	v_add_u32_e32 v11, s44, v30
	v_add3_u32 v13, v13, v15, v19
	v_add_u32_e32 v31, s14, v30
	ds_read_b128 v[38:41], v13
	ds_read_b128 v[42:45], v13 offset:64
	ds_read_u8 v37, v11 offset:64
	ds_read_u8 v11, v11
	ds_read_u8 v31, v31
	s_lshl_b32 s14, s48, 7
	s_add_i32 s15, s46, 0x80
	s_add_i32 s44, s14, 0x20e0
	s_waitcnt lgkmcnt(1)
	v_perm_b32 v11, v11, v37, s45
	s_add_i32 s47, s14, 0x21e0
	v_add_u32_e32 v36, s14, v16
	s_waitcnt vmcnt(6) lgkmcnt(0)
	v_mfma_scale_f32_16x16x128_f8f6f4 v[4:7], v[32:35], v[38:45], v[4:7], v31, v11 op_sel_hi:[0,0,0] cbsz:4
	ds_read_b128 v[38:41], v13 offset:512
	ds_read_b128 v[42:45], v13 offset:576
	s_cmp_lt_i32 s46, s43
	s_mov_b32 s46, s15
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_waitcnt vmcnt(3)
	ds_write_b8 v36, v50 offset:8416
	s_waitcnt vmcnt(2)
	ds_write_b8 v36, v51 offset:8672
	v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[32:35], v[38:45], v[0:3], v31, v11 op_sel:[0,1,0] op_sel_hi:[0,0,0] cbsz:4
	s_waitcnt vmcnt(1)
	v_mov_b32_e32 v32, v46
	v_mov_b32_e32 v33, v47
	s_waitcnt vmcnt(0)
	v_mov_b32_e32 v34, v48
	v_mov_b32_e32 v35, v49
	s_cbranch_scc1 .LBB0_2
	s_branch .LBB0_4
.LBB0_3:
	v_mov_b32_e32 v3, 0
	s_movk_i32 s44, 0x20e0
	s_movk_i32 s47, 0x21e0
	v_mov_b32_e32 v2, v3
	v_mov_b32_e32 v1, v3
	v_mov_b32_e32 v0, v3
	v_mov_b32_e32 v7, v3
	v_mov_b32_e32 v6, v3
	v_mov_b32_e32 v5, v3
	v_mov_b32_e32 v4, v3
.LBB0_4:
	s_addk_i32 s40, 0x7f
	s_cmpk_lt_i32 s40, 0x80
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_cbranch_scc1 .LBB0_6
	v_lshl_or_b32 v8, v9, 2, v21
	s_add_i32 s35, s35, s47
	v_and_b32_e32 v11, 0x180, v20
	v_add_u32_e32 v10, s35, v8
	v_add_u32_e32 v8, s44, v8
	v_add3_u32 v11, s20, v11, v18
	ds_read_u8 v10, v10
	v_add3_u32 v11, v11, v15, v19
	ds_read_u8 v12, v8 offset:64
	ds_read_u8 v8, v8
	ds_read_b128 v[20:23], v11 offset:64
	ds_read_b128 v[16:19], v11
	s_mov_b32 s0, 0xc0c0004
	s_waitcnt lgkmcnt(2)
	v_perm_b32 v8, v8, v12, s0
	s_waitcnt vmcnt(0) lgkmcnt(0)
	s_nop 0
	v_mfma_scale_f32_16x16x128_f8f6f4 v[4:7], v[32:35], v[16:23], v[4:7], v10, v8 op_sel_hi:[0,0,0] cbsz:4
	ds_read_b128 v[20:23], v11 offset:576
	ds_read_b128 v[16:19], v11 offset:512
	s_waitcnt lgkmcnt(0)
	v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[32:35], v[16:23], v[0:3], v10, v8 op_sel:[0,1,0] op_sel_hi:[0,0,0] cbsz:4
.LBB0_6:
	v_and_b32_e32 v11, 28, v14
	s_mul_i32 s10, s27, s33
	v_or_b32_e32 v8, 3, v14
	v_or_b32_e32 v12, 2, v11
	v_or_b32_e32 v14, 1, v11
	v_or_b32_e32 v16, s34, v11
	v_or_b32_e32 v17, s33, v9
	v_mul_lo_u32 v9, s27, v9
	s_add_i32 s10, s10, s34
	v_or_b32_e32 v13, s34, v12
	v_or_b32_e32 v15, s34, v14
	v_cmp_gt_i32_e32 vcc, s26, v17
	v_cmp_gt_i32_e64 s[2:3], s27, v16
	v_add_u32_e32 v9, s10, v9
	v_or_b32_e32 v10, s34, v8
	v_or_b32_e32 v18, 16, v17
	v_cmp_gt_i32_e64 s[4:5], s27, v15
	v_cmp_gt_i32_e64 s[6:7], s27, v13
	v_add_lshl_u32 v13, v9, v11, 2
	v_bfrev_b32_e32 v15, 1
	s_and_b64 s[10:11], vcc, s[2:3]
	v_cmp_gt_i32_e64 s[0:1], s26, v18
	v_cmp_gt_i32_e64 s[8:9], s27, v10
	v_lshl_add_u32 v10, s27, 4, v9
	s_and_b32 s25, s25, 0xffff
	s_mov_b32 s27, 0x27000
	s_mov_b32 s26, 0x7ffffffe
	v_cndmask_b32_e64 v13, v15, v13, s[10:11]
	buffer_store_dword v4, v13, s[24:27], 0 offen
	v_add_lshl_u32 v4, v9, v14, 2
	s_and_b64 s[10:11], vcc, s[4:5]
	v_cndmask_b32_e64 v4, v15, v4, s[10:11]
	buffer_store_dword v5, v4, s[24:27], 0 offen
	v_add_lshl_u32 v4, v9, v12, 2
	s_and_b64 s[10:11], vcc, s[6:7]
	v_cndmask_b32_e64 v4, v15, v4, s[10:11]
	buffer_store_dword v6, v4, s[24:27], 0 offen
	v_add_lshl_u32 v4, v9, v8, 2
	s_and_b64 vcc, vcc, s[8:9]
	v_cndmask_b32_e32 v4, v15, v4, vcc
	buffer_store_dword v7, v4, s[24:27], 0 offen
	v_add_lshl_u32 v4, v10, v11, 2
	s_and_b64 vcc, s[0:1], s[2:3]
	v_cndmask_b32_e32 v4, v15, v4, vcc
	buffer_store_dword v0, v4, s[24:27], 0 offen
	v_add_lshl_u32 v0, v10, v14, 2
	s_and_b64 vcc, s[0:1], s[4:5]
	v_cndmask_b32_e32 v0, v15, v0, vcc
	buffer_store_dword v1, v0, s[24:27], 0 offen
	v_add_lshl_u32 v0, v10, v12, 2
	s_and_b64 vcc, s[0:1], s[6:7]
	v_cndmask_b32_e32 v0, v15, v0, vcc
	buffer_store_dword v2, v0, s[24:27], 0 offen
	v_add_lshl_u32 v0, v10, v8, 2
	s_and_b64 vcc, s[0:1], s[8:9]
	v_cndmask_b32_e32 v0, v15, v0, vcc
	buffer_store_dword v3, v0, s[24:27], 0 offen
	s_endpgm
.Lfunc_end0:
	.size	mx_gemm, .Lfunc_end0-mx_gemm
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel mx_gemm
		.amdhsa_group_segment_fixed_size 8928
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 328
		.amdhsa_user_sgpr_count 16
		.amdhsa_user_sgpr_dispatch_ptr 1
		.amdhsa_user_sgpr_queue_ptr 1
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 1
		.amdhsa_user_sgpr_kernarg_preload_length 8
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 1
		.amdhsa_system_sgpr_workgroup_id_z 1
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 2
		.amdhsa_next_free_vgpr 52
		.amdhsa_next_free_sgpr 52
		.amdhsa_accum_offset 52
		.amdhsa_reserve_vcc 1
		.amdhsa_reserve_xnack_mask 1
		.amdhsa_float_round_mode_32 0
		.amdhsa_float_round_mode_16_64 0
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
		.amdhsa_dx10_clamp 1
		.amdhsa_ieee_mode 1
		.amdhsa_fp16_overflow 0
		.amdhsa_tg_split 0
		.amdhsa_exception_fp_ieee_invalid_op 0
		.amdhsa_exception_fp_denorm_src 0
		.amdhsa_exception_fp_ieee_div_zero 0
		.amdhsa_exception_fp_ieee_overflow 0
		.amdhsa_exception_fp_ieee_underflow 0
		.amdhsa_exception_fp_ieee_inexact 0
		.amdhsa_exception_int_div_zero 0
	.end_amdhsa_kernel
	.text
	.section	.AMDGPU.csdata,"",@progbits
	.text
	.p2alignl 6, 3212836864
	.fill 256, 4, 3212836864
	.section	.AMDGPU.gpr_maximums,"",@progbits
	.text
	.section	".note.GNU-stack","",@progbits
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         16
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         24
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         32
        .size:           8
        .value_kind:     global_buffer
      - .offset:         40
        .size:           4
        .value_kind:     by_value
      - .offset:         44
        .size:           4
        .value_kind:     by_value
      - .offset:         48
        .size:           4
        .value_kind:     by_value
      - .address_space:  global
        .offset:         56
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         64
        .size:           8
        .value_kind:     global_buffer
      - .offset:         72
        .size:           4
        .value_kind:     hidden_block_count_x
      - .offset:         76
        .size:           4
        .value_kind:     hidden_block_count_y
      - .offset:         80
        .size:           4
        .value_kind:     hidden_block_count_z
      - .offset:         84
        .size:           2
        .value_kind:     hidden_group_size_x
      - .offset:         86
        .size:           2
        .value_kind:     hidden_group_size_y
      - .offset:         88
        .size:           2
        .value_kind:     hidden_group_size_z
      - .offset:         90
        .size:           2
        .value_kind:     hidden_remainder_x
      - .offset:         92
        .size:           2
        .value_kind:     hidden_remainder_y
      - .offset:         94
        .size:           2
        .value_kind:     hidden_remainder_z
      - .offset:         112
        .size:           8
        .value_kind:     hidden_global_offset_x
      - .offset:         120
        .size:           8
        .value_kind:     hidden_global_offset_y
      - .offset:         128
        .size:           8
        .value_kind:     hidden_global_offset_z
      - .offset:         136
        .size:           2
        .value_kind:     hidden_grid_dims
      - .offset:         152
        .size:           8
        .value_kind:     hidden_hostcall_buffer
      - .offset:         160
        .size:           8
        .value_kind:     hidden_multigrid_sync_arg
      - .offset:         168
        .size:           8
        .value_kind:     hidden_heap_v1
      - .offset:         176
        .size:           8
        .value_kind:     hidden_default_queue
      - .offset:         184
        .size:           8
        .value_kind:     hidden_completion_action
      - .offset:         192
        .size:           4
        .value_kind:     hidden_dynamic_lds_size
      - .offset:         272
        .size:           8
        .value_kind:     hidden_queue_ptr
    .group_segment_fixed_size: 8928
    .kernarg_segment_align: 8
    .kernarg_segment_size: 328
    .max_flat_workgroup_size: 128
    .name:           mx_gemm
    .private_segment_fixed_size: 0
    .sgpr_count:     58
    .sgpr_spill_count: 0
    .symbol:         mx_gemm.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     52
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgpu9.50-amd-amdhsa-unknown-gfx950
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
